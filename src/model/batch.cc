// Positions, KV slots, starts and page tables, from documents and the pages they lie in.
#include "model/batch.h"

#include <algorithm>
#include <numeric>

#include "kernels/checks.h"
#include "kernels/layout.h"
#include "kernels/memory.h"

namespace dsmoe::model {

using kernels::round_up;
using tensor::DType;
using tensor::TensorView;

namespace {

constexpr int64_t kPartAlignment = 16;  // in numbers

}  // namespace

BatchBuffer::BatchBuffer(const kernels::Context& context, const Limits& limits,
                         tensor::Arena& arena)
    : context_(context), max_pages_(limits.max_pages) {
  // tokens, position and kv_slot, and one of experts_of_token and is_counted.
  int64_t size = 4 * round_up(limits.max_tokens, kPartAlignment) +
                 round_up(limits.max_documents + 1, kPartAlignment) + kPartAlignment +
                 round_up(limits.max_documents * max_pages_, kPartAlignment);
  if (limits.max_sequences > 0) size += round_up(limits.max_sequences + 1, kPartAlignment);
  device_ = arena.tensor("batch", DType::I32, {size});
  host_.reserve(static_cast<std::size_t>(size));
}

BatchViews BatchBuffer::upload(const Input& input) {
  const auto num_tokens = static_cast<int64_t>(input.tokens.size());
  const auto num_documents = static_cast<int64_t>(input.documents.size());
  host_.clear();
  // The next `size` numbers, on the host to be filled and on the device to be used.
  const auto part = [&](TensorView& view, const kernels::Shape& shape) {
    const auto begin = static_cast<int64_t>(host_.size());
    view = device_.rows(begin, begin + shape.num_elements());
    view.shape = shape;
    host_.resize(static_cast<std::size_t>(begin + round_up(shape.num_elements(), kPartAlignment)));
    return static_cast<std::size_t>(begin);
  };
  BatchViews views;
  const std::size_t tokens = part(views.tokens, {num_tokens});
  const std::size_t position = part(views.position, {num_tokens});
  const std::size_t kv_slot = part(views.kv_slot, {num_tokens});
  const std::size_t starts = part(views.document_starts, {num_documents + 1});
  const std::size_t range = part(views.token_range, {2});
  if (!input.experts_of_token.empty()) {
    const std::size_t experts = part(views.experts_of_token, {num_tokens});
    std::copy(input.experts_of_token.begin(), input.experts_of_token.end(), &host_[experts]);
  }
  if (!input.sequence_lengths.empty()) {
    const std::size_t counted = part(views.is_counted, {num_tokens});
    std::transform(input.targets.begin(), input.targets.end(),
                   host_.begin() + static_cast<std::ptrdiff_t>(counted),
                   [](int32_t target) { return target >= 0 ? 1 : 0; });
  }
  views.sequence_starts = views.document_starts;
  if (!input.sequence_lengths.empty()) {
    const auto count = static_cast<int64_t>(input.sequence_lengths.size());
    const std::size_t sequences = part(views.sequence_starts, {count + 1});
    std::partial_sum(input.sequence_lengths.begin(), input.sequence_lengths.end(),
                     &host_[sequences + 1]);
  }
  const std::size_t table = part(views.page_table, {num_documents, max_pages_});

  std::copy(input.tokens.begin(), input.tokens.end(), &host_[tokens]);
  host_[range + 1] = static_cast<int32_t>(num_tokens);
  std::size_t token = 0;
  for (std::size_t d = 0; d < input.documents.size(); ++d) {
    const Document& document = input.documents[d];
    for (int64_t i = 0; i < document.num_tokens; ++i, ++token) {
      const int64_t place = document.begin + i;
      const int64_t page = document.pages[static_cast<std::size_t>(place / kernels::kKeyBlock)];
      host_[position + token] = static_cast<int32_t>(place);
      host_[kv_slot + token] =
          static_cast<int32_t>(page * kernels::kKeyBlock + place % kernels::kKeyBlock);
    }
    host_[starts + d + 1] = static_cast<int32_t>(token);
    std::copy(document.pages.begin(), document.pages.end(),
              &host_[table + d * static_cast<std::size_t>(max_pages_)]);
  }
  kernels::upload(context_, host_.data(), device_.rows(0, static_cast<int64_t>(host_.size())));
  return views;
}

}  // namespace dsmoe::model
