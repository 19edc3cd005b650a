// The hash threshold, and the cut by tokens for corpora of few documents.
#include "data/split.h"

#include "base/error.h"
#include "base/rng.h"

namespace dsmoe::data {
namespace {

constexpr int64_t kFewDocuments = 20;

}  // namespace

DocumentSplit::DocumentSplit(const TokenCorpus& corpus, SplitOptions options)
    : corpus_(corpus), options_(options) {
  if (!(options.fraction >= 0 && options.fraction < 1)) {
    fail(ErrorKind::usage, "validation fraction {}; expected at least 0 and below 1",
         options.fraction);
  }
  if (options.fraction == 0) return;
  if (corpus.num_documents() >= kFewDocuments) choose_documents();
  if (chosen_.empty()) cut_by_tokens();
}

void DocumentSplit::choose_documents() {
  const Rng rng{.seed = options_.seed, .purpose = RngPurpose::data_order, .stream = 1};
  chosen_.resize(static_cast<size_t>(corpus_.num_documents()));
  int64_t num_chosen = 0;
  for (int64_t d = 0; d < corpus_.num_documents(); ++d) {
    const bool chosen = rng.uniform_f64(corpus_.content_hash(d)) < options_.fraction;
    chosen_[static_cast<size_t>(d)] = chosen;
    num_chosen += chosen ? 1 : 0;
  }
  if (num_chosen == 0 || num_chosen == corpus_.num_documents()) chosen_.clear();
}

void DocumentSplit::cut_by_tokens() {
  by_document_ = false;
  const double training = static_cast<double>(corpus_.num_tokens()) * (1 - options_.fraction);
  int64_t left = static_cast<int64_t>(training);
  for (; cut_document_ < corpus_.num_documents(); ++cut_document_) {
    const int64_t length = corpus_.length(cut_document_);
    if (left < length) break;
    left -= length;
  }
  cut_offset_ = left;
}

TokenRange DocumentSplit::training(int64_t document) const {
  const int64_t length = corpus_.length(document);
  if (by_document_) {
    const bool chosen = !chosen_.empty() && chosen_[static_cast<size_t>(document)];
    return {0, chosen ? 0 : length};
  }
  if (document == cut_document_) return {0, cut_offset_};
  return {0, document < cut_document_ ? length : 0};
}

TokenRange DocumentSplit::validation(int64_t document) const {
  return {training(document).end, corpus_.length(document)};
}

}  // namespace dsmoe::data
