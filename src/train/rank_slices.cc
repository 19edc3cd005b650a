// In chunks: the same piece of every rank's slices at a time, so that all receive at once and boxes
// stay small.
#include "train/rank_slices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/flush_denormals.h"
#include "base/thread_pool.h"
#include "kernels/memory.h"
#include "kernels/optimizer.h"

namespace dsmoe::train {

using comm::Bytes;
using comm::Room;
using tensor::TensorView;

namespace {

constexpr int64_t kBoxElements = int64_t{1} << 22;  // of all boxes together
constexpr int64_t kGrain = 1 << 14;

std::size_t at(int64_t idx) { return static_cast<std::size_t>(idx); }

// One part of the norm, as kernels/optimizer.h says.
double square_part(const float* x, int64_t count) {
  constexpr int64_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const int64_t used = std::min(kLanes, count - begin);
    for (int64_t i = 0; i < used; ++i) {
      const auto value = static_cast<double>(x[begin + i]);
      lanes[at(i)] += value * value;
    }
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[at(i)] += lanes[at(i + half)];
  return lanes[0];
}

template <class Box>
auto spans_of(std::vector<Box>& boxes) {
  using Span = std::span<std::byte>;
  std::vector<Span> spans;
  for (Box& box : boxes) spans.emplace_back(box);
  return spans;
}

std::vector<Bytes> to_send(std::vector<std::vector<std::byte>>& boxes) {
  std::vector<Bytes> spans;
  for (const std::vector<std::byte>& box : boxes) spans.emplace_back(box);
  return spans;
}

void append(std::vector<std::byte>& box, const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  box.insert(box.end(), begin, begin + bytes);
}

}  // namespace

RankSlices::RankSlices(const kernels::Context& context, comm::Group& group,
                       const RankLayout& layout, std::vector<Tensor> tensors)
    : context_(context),
      group_(group),
      layout_(layout),
      tensors_(std::move(tensors)),
      slices_of_(at(layout.ranks)),
      outbox_(at(layout.ranks)),
      inbox_(at(layout.ranks)) {
  DSMOE_CHECK(group.size() == layout.ranks && group.rank() == layout.rank,
              "rank {} of {} in a layout of rank {} of {}", group.rank(), group.size(), layout.rank,
              layout.ranks);
  std::vector<SlicedTensor> sliced;
  for (const Tensor& tensor : tensors_) {
    DSMOE_CHECK(tensor.has() == has_tensor(layout, layout.rank, tensor.sliced),
                "{}: rank {} has it, or has it not, against the layout", tensor.name, layout.rank);
    sliced.push_back(tensor.sliced);
  }
  slices_ = cut_slices(sliced, layout);
  std::vector<int64_t> elements(at(layout.ranks), 0);
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    slices_of_[at(slices_[i].rank)].push_back(i);
    elements[at(slices_[i].rank)] += slices_[i].size();
  }
  const int64_t copies = layout.ranks * std::max(layout.dense_buffers(), layout.expert_buffers());
  chunk_elements_ = std::max<int64_t>(kBoxElements / copies, 1 << 12);
  const int64_t most = *std::ranges::max_element(elements);
  num_chunks_ = (most + chunk_elements_ - 1) / chunk_elements_;
}

bool RankSlices::has(std::size_t rank, const Tensor& tensor) const {
  return has_tensor(layout_, static_cast<int64_t>(rank), tensor.sliced);
}

std::size_t RankSlices::num_buffers(const Tensor& tensor) const {
  return at(tensor.sliced.expert_rank < 0 ? layout_.dense_buffers() : layout_.expert_buffers());
}

// The pieces of a rank's slices that travel in a chunk.
template <class F>
void RankSlices::for_pieces(std::size_t rank, int64_t chunk, F&& f) const {
  const int64_t first = chunk * chunk_elements_, last = first + chunk_elements_;
  int64_t before = 0;
  for (std::size_t own = 0; own < slices_of_[rank].size() && before < last; ++own) {
    const Slice& slice = slices_[slices_of_[rank][own]];
    const int64_t begin = std::max(first - before, int64_t{0});
    const int64_t end = std::min(last - before, slice.size());
    if (begin < end) {
      f(Piece{.tensor = slice.tensor,
              .own = own,
              .slice_begin = slice.begin,
              .begin = slice.begin + begin,
              .end = slice.begin + end});
    }
    before += slice.size();
  }
}

void RankSlices::join_tied() {
  for (const Tensor& tensor : tensors_) {
    for (const model::NamedGradient& shard : tensor.shards) model::join_tied(*context_.pool, shard);
  }
}

// ((s0 + s1) + s2) + ..: buffer by buffer, in each the ranks ascending. `at`: where each rank's
// numbers lie, one buffer behind the other.
void RankSlices::add_up(const Piece& piece, const TensorView& sum,
                        std::span<const float*> from) const {
  const Tensor& tensor = tensors_[piece.tensor];
  const int64_t count = piece.end - piece.begin;
  float* out = sum.as<float>() + (piece.begin - piece.slice_begin);
  parallel_for(*context_.pool, count, kGrain, [&](int64_t begin, int64_t end) {
    bool is_first = true;
    for (std::size_t buffer = 0; buffer < num_buffers(tensor); ++buffer) {
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        if (!has(rank, tensor)) continue;
        const float* shard = from[rank] + static_cast<int64_t>(buffer) * count;
        for (int64_t i = begin; i < end; ++i) out[i] = is_first ? shard[i] : out[i] + shard[i];
        is_first = false;
      }
    }
  });
}

void RankSlices::reduce(std::span<const TensorView> sums) {
  join_tied();
  std::vector<const float*> from(num_ranks());
  for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      outbox_[rank].clear();
      for_pieces(rank, chunk, [&](const Piece& piece) {
        for (const model::NamedGradient& shard : tensors_[piece.tensor].shards) {
          append(outbox_[rank], shard.gradient.as<float>() + piece.begin,
                 at(piece.end - piece.begin) * sizeof(float));
        }
      });
      std::size_t numbers = 0;
      for_pieces(own_rank(), chunk, [&](const Piece& piece) {
        const Tensor& tensor = tensors_[piece.tensor];
        if (has(rank, tensor)) numbers += num_buffers(tensor) * at(piece.end - piece.begin);
      });
      inbox_[rank].resize(numbers * sizeof(float));
      from[rank] = reinterpret_cast<const float*>(inbox_[rank].data());
    }
    group_.exchange("gradients to those who update", to_send(outbox_), spans_of(inbox_));
    for_pieces(own_rank(), chunk, [&](const Piece& piece) {
      add_up(piece, sums[piece.own], from);
      const Tensor& tensor = tensors_[piece.tensor];
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        if (!has(rank, tensor)) continue;
        from[rank] += num_buffers(tensor) * at(piece.end - piece.begin);
      }
    });
  }
}

double RankSlices::norm(std::span<const TensorView> sums) {
  const auto num_parts = [&](const Slice& slice) {
    const int64_t part = kernels::square_part_size(tensors_[slice.tensor].sliced.size);
    return (slice.size() + part - 1) / part;
  };
  std::vector<std::vector<double>> parts(num_ranks());
  for (const Slice& slice : slices_) {
    std::vector<double>& of_rank = parts[at(slice.rank)];
    of_rank.resize(of_rank.size() + at(num_parts(slice)));
  }
  double* next = parts[own_rank()].data();
  for (std::size_t i = 0; i < own().size(); ++i) {
    const Slice& slice = slices_[own()[i]];
    const int64_t part = kernels::square_part_size(tensors_[slice.tensor].sliced.size);
    parallel_for(*context_.pool, num_parts(slice), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        next[p] =
            square_part(sums[i].as<float>() + p * part, std::min(part, slice.size() - p * part));
      }
    });
    next += num_parts(slice);
  }
  std::vector<Room> receive;
  for (std::vector<double>& of_rank : parts)
    receive.push_back(std::as_writable_bytes(std::span(of_rank)));
  const std::vector<Bytes> send(num_ranks(), std::as_bytes(std::span(parts[own_rank()])));
  group_.exchange("parts of the gradient's norm", send, receive);

  double total = 0, of_tensor = 0;
  std::vector<std::size_t> taken(num_ranks(), 0);
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const std::size_t rank = at(slices_[i].rank);
    for (int64_t p = 0; p < num_parts(slices_[i]); ++p) of_tensor += parts[rank][taken[rank]++];
    if (i + 1 < slices_.size() && slices_[i + 1].tensor == slices_[i].tensor) continue;
    total += of_tensor;
    of_tensor = 0;
  }
  return std::sqrt(total);
}

// Values arrive where the gradient was, which is used up: row-major, in the stored type.
void RankSlices::hand_out(std::span<const TensorView> values) {
  const auto bytes_of = [&](const Piece& piece) {
    return at(piece.end - piece.begin) * tensor::size_of(tensors_[piece.tensor].stored);
  };
  for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      outbox_[rank].clear();
      for_pieces(own_rank(), chunk, [&](const Piece& piece) {
        if (!has(rank, tensors_[piece.tensor])) return;
        const TensorView& value = values[piece.own];
        append(outbox_[rank],
               value.rows(piece.begin - piece.slice_begin, piece.end - piece.slice_begin).data,
               bytes_of(piece));
      });
      std::size_t bytes = 0;
      for_pieces(rank, chunk, [&](const Piece& piece) {
        if (tensors_[piece.tensor].has()) bytes += bytes_of(piece);
      });
      inbox_[rank].resize(bytes);
    }
    group_.exchange("new weights", to_send(outbox_), spans_of(inbox_));
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      const std::byte* next = inbox_[rank].data();
      for_pieces(rank, chunk, [&](const Piece& piece) {
        const Tensor& tensor = tensors_[piece.tensor];
        if (!tensor.has()) return;
        auto* place = static_cast<std::byte*>(tensor.shards[0].gradient.data);
        std::memcpy(place + at(piece.begin) * tensor::size_of(tensor.stored), next,
                    bytes_of(piece));
        next += bytes_of(piece);
      });
    }
  }
  for (const Tensor& tensor : tensors_) {
    if (!tensor.has()) continue;
    TensorView whole = tensor.shards[0].gradient;
    whole.dtype = tensor.stored;
    for (const model::Placement* placement : tensor.placements)
      model::place_tensor(context_, *placement, {.elements = whole});
    for (const model::NamedGradient& shard : tensor.shards) {
      if (!shard.is_assigned)
        kernels::zero(context_, shard.gradient.data, shard.gradient.num_bytes());
      if (shard.second_part)
        kernels::zero(context_, shard.second_part.data, shard.second_part.num_bytes());
    }
  }
}

}  // namespace dsmoe::train
