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
  int64_t num_chosen = 0;
  if (corpus.num_documents() >= kFewDocuments) {
    for (int64_t d = 0; d < corpus.num_documents(); ++d) num_chosen += chosen(d) ? 1 : 0;
  }
  if (num_chosen == 0 || num_chosen == corpus.num_documents()) cut_by_tokens();
}

bool DocumentSplit::chosen(int64_t document) const {
  if (options_.fraction == 0) return false;
  const Rng rng{.seed = options_.seed, .purpose = RngPurpose::data_order, .stream = 1};
  return rng.uniform_f64(corpus_.content_hash(document)) < options_.fraction;
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
  if (by_document_) return {0, chosen(document) ? 0 : length};
  if (document == cut_document_) return {0, cut_offset_};
  return {0, document < cut_document_ ? length : 0};
}

TokenRange DocumentSplit::validation(int64_t document) const {
  return {training(document).end, corpus_.length(document)};
}

}  // namespace dsmoe::data
