// Packing, moving, laying out: the receiver puts tokens into the order of all ranks' sequences, so
// that its experts' sums are those of one rank.
#include "moe/exchange.h"

#include <cstring>
#include <numeric>

#include "kernels/checks.h"
#include "moe/plan.h"

namespace dsmoe::moe {

using comm::Bytes;
using comm::Room;
using kernels::DispatchPlan;

namespace {

std::size_t row_bytes(const TensorView& view) {
  return static_cast<std::size_t>(view.shape.rank() == 1 ? 1 : view.dim(1)) *
         tensor::size_of(view.dtype);
}

std::byte* bytes_at(const TensorView& view, int64_t row) {
  return static_cast<std::byte*>(view.data) + static_cast<std::size_t>(row) * row_bytes(view);
}

// target[i] = source[index[i]]
void gather(const TensorView& source, std::span<const int32_t> index, std::byte* target) {
  const std::size_t size = row_bytes(source);
  for (const int32_t row : index) {
    std::memcpy(target, bytes_at(source, row), size);
    target += size;
  }
}

// target[index[i]] = source[i]
void scatter(const std::byte* source, std::span<const int32_t> index, const TensorView& target) {
  const std::size_t size = row_bytes(target);
  for (const int32_t row : index) {
    std::memcpy(bytes_at(target, row), source, size);
    source += size;
  }
}

std::span<int32_t> integers(const TensorView& view, int64_t count) {
  return {view.as<int32_t>(), static_cast<std::size_t>(count)};
}

// Consecutive pieces of so many rows each.
template <class Piece, class Byte>
std::vector<Piece> pieces(Byte* memory, std::span<const int32_t> counts, std::size_t size) {
  std::vector<Piece> list;
  for (const int32_t count : counts) {
    list.emplace_back(memory, static_cast<std::size_t>(count) * size);
    memory += list.back().size();
  }
  return list;
}

// Rows of a plan are sorted by expert, so those of one rank's experts lie together.
template <class Piece>
std::vector<Piece> by_owner(const TensorView& rows, const TensorView& expert_offsets,
                            int64_t ranks) {
  const int64_t experts = expert_offsets.dim(0) - 1;
  const int32_t* offsets = expert_offsets.as<int32_t>();
  std::vector<Piece> list;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int32_t begin = offsets[first_expert(experts, rank, ranks)];
    const int32_t end = offsets[first_expert(experts, rank + 1, ranks)];
    list.emplace_back(bytes_at(rows, begin), bytes_at(rows, end));
  }
  return list;
}

}  // namespace

int64_t ExchangeSize::own_experts() const {
  return first_expert(num_experts, rank + 1, ranks) - first_expert(num_experts, rank, ranks);
}

ExchangeTape allocate_exchange_tape(const ExchangeSize& size, tensor::Arena& arena) {
  const auto list = [&](const kernels::Shape& shape) {
    return arena.tensor("exchange", DType::I32, shape);
  };
  const int64_t sequences = size.ranks * size.max_sequences;
  return {.sent_token = list({size.max_sent()}),
          .came_place = list({size.max_came()}),
          .came_row = list({size.max_rows()}),
          .counts = list({3, size.ranks}),
          .starts = list({sequences + 1}),
          .plan = allocate_plan({.num_experts = size.own_experts(),
                                 .max_sequences = sequences,
                                 .max_tokens = size.max_came(),
                                 .top_k = size.top_k},
                                arena),
          .x = arena.tensor("exchange", size.operand, {size.max_came(), size.hidden})};
}

ExchangeWorkspace allocate_exchange_workspace(const ExchangeSize& size, tensor::Arena& arena) {
  const DType scalar = kernels::scalar_type(size.operand);
  const auto take = [&](DType dtype, const kernels::Shape& shape) {
    return arena.tensor("exchange", dtype, shape);
  };
  // A box holds rows of the operand type, or one scalar of each row.
  const auto box = [&](int64_t rows) {
    const auto row = static_cast<int64_t>(std::max(
        static_cast<std::size_t>(size.hidden) * tensor::size_of(size.operand), sizeof(double)));
    return take(DType::U8, {rows * row});
  };
  return {.notes_sent = take(DType::I32, {size.max_sent(), size.top_k + 1}),
          .notes_come = take(DType::I32, {size.max_came(), size.top_k + 1}),
          .index = take(DType::I32, {size.max_came(), size.top_k}),
          .rank_of_token = take(DType::I32, {size.max_came()}),
          .outbox = box(std::max(size.max_sent(), size.max_rows())),
          .inbox = box(std::max(size.max_came(), size.max_rows())),
          .d_out = take(size.operand, {size.max_came(), size.hidden}),
          .gate_of_row = take(scalar, {size.max_rows()}),
          .d_gate_of_row = take(scalar, {size.max_rows()}),
          .home = take(size.operand, {size.max_tokens * size.top_k, size.hidden}),
          .unit_offsets = take(DType::I32, {size.own_experts(), size.max_sequences + 1})};
}

Exchange::Exchange(const Context& context, const DispatchPlan& plan, const ExchangeTape& tape,
                   const ExchangeWorkspace& workspace)
    : context_(context), plan_(plan), tape_(tape), workspace_(workspace) {
  if (!tape) return;
  group_ = context.group;
  DSMOE_CHECK(group_ != nullptr, "a layer with an exchange needs a group of ranks");
  DSMOE_CHECK(group_->size() == tape.counts.dim(1),
              "the exchange was planned for {} ranks, the group has {}", tape.counts.dim(1),
              group_->size());
  DSMOE_CHECK(tape.x.device == kernels::Device::cpu, "exchanges are of host memory yet");
}

std::span<int32_t> Exchange::counts(Count which) const {
  const int64_t ranks = tape_.counts.dim(1);
  return {tape_.counts.as<int32_t>() + which * ranks, static_cast<std::size_t>(ranks)};
}

int64_t Exchange::total(Count which) const {
  const std::span<int32_t> all = counts(which);
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

void Exchange::announce(const Routes& routes) const {
  if (is_alone()) return;
  note_tokens(routes);
  const std::span<int32_t> to = counts(sent), from = counts(came);
  const std::vector<int64_t> arriving = group_->exchange_numbers(
      "how many tokens go where", std::vector<int64_t>(to.begin(), to.end()));
  std::ranges::copy(arriving, from.begin());
  const int64_t room = tape_.came_place.dim(0);
  if (total(came) > room) {
    fail(ErrorKind::resource, "rank {}: {} tokens come to its experts, there is room for {}",
         group_->rank(), total(came), room);
  }
  const std::size_t size = row_bytes(workspace_.notes_sent);
  group_->exchange("which experts they take",
                   pieces<Bytes>(bytes_at(workspace_.notes_sent, 0), to, size),
                   pieces<Room>(bytes_at(workspace_.notes_come, 0), from, size));
  order_tokens(routes.sequences_per_unit);
  list_rows();
}

// Which tokens go to which rank, and what that rank has to know of each.
void Exchange::note_tokens(const Routes& routes) const {
  const int64_t tokens = routes.index.dim(0), top_k = routes.index.dim(1);
  const int64_t experts = plan_.expert_offsets.dim(0) - 1;
  const int64_t ranks = group_->size();
  const int32_t* index = routes.index.as<int32_t>();
  const int32_t* starts = routes.sequence_starts.as<int32_t>();
  int32_t* note = workspace_.notes_sent.as<int32_t>();
  int32_t* sent_token = tape_.sent_token.as<int32_t>();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t first = first_expert(experts, rank, ranks);
    const int64_t last = first_expert(experts, rank + 1, ranks);
    const auto is_there = [&](int32_t expert) { return first <= expert && expert < last; };
    int32_t sequence = 0, count = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      while (starts[sequence + 1] <= t) ++sequence;
      const int32_t* experts_of_token = index + t * top_k;
      if (!std::any_of(experts_of_token, experts_of_token + top_k, is_there)) continue;
      *note++ = sequence;
      for (int64_t slot = 0; slot < top_k; ++slot) {
        const int32_t e = experts_of_token[slot];
        *note++ = is_there(e) ? static_cast<int32_t>(e - first) : -1;
      }
      *sent_token++ = static_cast<int32_t>(t);
      ++count;
    }
    counts(sent)[static_cast<std::size_t>(rank)] = count;
  }
}

// Where each token that came lies: a sequence is of one rank, and its tokens come in order.
void Exchange::order_tokens(int64_t sequences_per_unit) const {
  const int64_t top_k = workspace_.index.dim(1);
  const std::span<int32_t> starts = integers(tape_.starts, tape_.starts.dim(0));
  std::ranges::fill(starts, 0);
  // visit(i, rank, sequence, experts) of the i-th token that came.
  const auto each = [&](auto&& visit) {
    const int32_t* note = workspace_.notes_come.as<int32_t>();
    int64_t i = 0;
    for (int rank = 0; rank < group_->size(); ++rank) {
      for (int32_t left = counts(came)[static_cast<std::size_t>(rank)]; left > 0; --left) {
        const int64_t sequence = global_sequence(note[0], sequences_per_unit, rank, group_->size());
        DSMOE_CHECK(sequence + 1 < tape_.starts.dim(0), "sequence {} of {} in the exchange",
                    sequence, tape_.starts.dim(0) - 1);
        visit(i++, rank, static_cast<std::size_t>(sequence), note + 1);
        note += top_k + 1;
      }
    }
  };
  // Counts two places on, so that sums become the first places of the sequences, one place on;
  // each token takes one, and in the end every start is where it belongs.
  each([&](int64_t, int, std::size_t sequence, const int32_t*) {
    if (sequence + 2 < starts.size()) ++starts[sequence + 2];
  });
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  int32_t* place = tape_.came_place.as<int32_t>();
  each([&](int64_t i, int rank, std::size_t sequence, const int32_t* experts) {
    const int32_t own = starts[sequence + 1]++;
    place[i] = own;
    workspace_.rank_of_token.as<int32_t>()[own] = rank;
    std::copy_n(experts, top_k, workspace_.index.as<int32_t>() + own * top_k);
  });
}

// The plan of this rank's experts, and its rows by the rank they go back to.
void Exchange::list_rows() const {
  DispatchPlan plan = tape_.plan;
  const TensorView index = workspace_.index.rows(0, total(came));
  plan.token_of_row.shape = {index.num_elements()};
  plan.row_of_slot.shape = index.shape;
  build_plan(context_, index, tape_.starts, plan);
  const int64_t count = plan.expert_offsets.as<int32_t>()[plan.expert_offsets.dim(0) - 1];
  const int32_t* token = plan.token_of_row.as<int32_t>();
  const int32_t* rank_of_token = workspace_.rank_of_token.as<int32_t>();
  int32_t* list = tape_.came_row.as<int32_t>();
  for (int rank = 0; rank < group_->size(); ++rank) {
    const int32_t* begin = list;
    for (int32_t row = 0; row < count; ++row) {
      if (rank_of_token[token[row]] == rank) *list++ = row;
    }
    counts(rows)[static_cast<std::size_t>(rank)] = static_cast<int32_t>(list - begin);
  }
}

DispatchPlan Exchange::experts_plan() const {
  if (is_alone()) return plan_;
  DispatchPlan plan = tape_.plan;
  plan.token_of_row.shape = {total(rows)};
  plan.row_of_slot = {};  // of the tokens' own ranks
  return plan;
}

TensorView Exchange::experts_x() const { return tape_.x.rows(0, total(came)); }

TensorView Exchange::sequence_offsets_of_unit(int64_t rank, int64_t sequences_per_unit) const {
  const TensorView& all = tape_.plan.sequence_offsets;
  TensorView unit = workspace_.unit_offsets;
  const int64_t begin = rank * sequences_per_unit;
  DSMOE_CHECK(begin + sequences_per_unit < all.dim(1) && sequences_per_unit < unit.dim(1),
              "a unit of {} sequences from {} on, of {}", sequences_per_unit, begin,
              all.dim(1) - 1);
  unit.shape = {all.dim(0), sequences_per_unit + 1};
  int32_t* out = unit.as<int32_t>();
  for (int64_t expert = 0; expert < all.dim(0); ++expert) {
    const int32_t* own = all.as<int32_t>() + expert * all.dim(1) + begin;
    out = std::copy_n(own, sequences_per_unit + 1, out);
  }
  return unit;
}

TensorView Exchange::send(const TensorView& tokens, const TensorView& room) const {
  if (is_alone()) return tokens;
  const std::size_t size = row_bytes(tokens);
  auto* outbox = static_cast<std::byte*>(workspace_.outbox.data);
  auto* inbox = static_cast<std::byte*>(workspace_.inbox.data);
  const TensorView target = room.rows(0, total(came));
  gather(tokens, integers(tape_.sent_token, total(sent)), outbox);
  group_->exchange("tokens to their experts", pieces<Bytes>(outbox, counts(sent), size),
                   pieces<Room>(inbox, counts(came), size));
  scatter(inbox, integers(tape_.came_place, total(came)), target);
  return target;
}

TensorView Exchange::send_rows(const TensorView& own, const TensorView& room) const {
  if (is_alone()) return own;
  auto* inbox = static_cast<std::byte*>(workspace_.inbox.data);
  const TensorView target = room.rows(0, total(rows));
  group_->exchange("rows to their experts",
                   by_owner<Bytes>(own, plan_.expert_offsets, group_->size()),
                   pieces<Room>(inbox, counts(rows), row_bytes(own)));
  scatter(inbox, integers(tape_.came_row, total(rows)), target);
  return target;
}

TensorView Exchange::bring_back(const TensorView& of_experts, const TensorView& room) const {
  if (is_alone()) return of_experts;
  auto* outbox = static_cast<std::byte*>(workspace_.outbox.data);
  gather(of_experts, integers(tape_.came_row, total(rows)), outbox);
  group_->exchange("experts' rows come back",
                   pieces<Bytes>(outbox, counts(rows), row_bytes(of_experts)),
                   by_owner<Room>(room, plan_.expert_offsets, group_->size()));
  return room;
}

}  // namespace dsmoe::moe
