// A product with the head, a choice per row, one download.
#include "infer/sequence/next_tokens.h"

#include <algorithm>

#include "infer/sequence/workspace.h"
#include "kernels/memory.h"
#include "kernels/table.h"

namespace dsmoe::infer {

using tensor::DType;
using tensor::TensorView;

NextTokens::NextTokens(const kernels::Context& context, const model::Model& model,
                       model::ForwardPass& pass, int64_t max_rows)
    : context_(context),
      pass_(pass),
      reads_flags_(pass.limits().keep_routing == model::KeepRouting::no),
      arena_("logits", context.table->allocator) {
  const int64_t vocabulary = model.config.vocab_size;
  const int64_t rows = logit_rows(vocabulary, max_rows);
  logits_ = arena_.tensor("logits", DType::F32, {rows, vocabulary});
  host_logits_.reserve(static_cast<std::size_t>(rows * vocabulary));  // a step takes no memory
  host_ids_.reserve(static_cast<std::size_t>(rows));
  if (!reads_flags_) {
    best_ = arena_.tensor("logits", DType::I32, {rows});
    choice_ = arena_.tensor("logits", DType::I32, {rows});
    return;
  }
  const TensorView ids = pass.ids();  // beside the flags
  DSMOE_CHECK(rows <= ids.dim(1), "{} rows, the pass has room for {} ids", rows, ids.dim(1));
  best_ = ids.rows(0, 1);
  choice_ = ids.rows(1, 2);
  best_.shape = choice_.shape = {ids.dim(1)};
}

void NextTokens::compute(const TensorView& hidden, Wanted wanted) {
  rows_ = hidden.dim(0);
  const TensorView logits = logits_.rows(0, rows_);
  if (wanted == Wanted::logits) return pass_.logits(hidden, logits);
  pass_.most_likely(hidden, logits, best_.rows(0, rows_));
}

std::span<const int32_t> NextTokens::most_likely() { return read(best_.rows(0, rows_), host_ids_); }

std::span<const int32_t> NextTokens::choose(std::span<const kernels::SampleRule> rules) {
  if (std::ranges::all_of(rules, [](const auto& rule) { return rule.takes_best(); })) {
    return most_likely();
  }
  const TensorView choice = choice_.rows(0, rows_);
  kernels::sample_forward(context_, {.logits = logits_.rows(0, rows_),
                                     .best = best_.rows(0, rows_),
                                     .rule = rules,
                                     .index = choice});
  return read(choice, host_ids_);
}

std::span<float> NextTokens::logits() { return read(logits_.rows(0, rows_), host_logits_); }

template <class T>
std::span<T> NextTokens::read(const TensorView& source, std::vector<T>& host) {
  host.resize(static_cast<std::size_t>(source.num_elements()));
  if (reads_flags_) {
    pass_.read(source, host.data());
  } else {
    kernels::download(context_, source, host.data());
  }
  return host;
}

}  // namespace dsmoe::infer
