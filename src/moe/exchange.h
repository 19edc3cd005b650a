// The exchange: tokens travel to the ranks that own their experts, and the experts' rows come back.
// Where there is one rank nothing travels: what is handed in is handed on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "comm/group.h"
#include "kernels/plan.h"
#include "tensor/arena.h"

namespace dsmoe::moe {

using kernels::Context;
using kernels::DType;
using kernels::TensorView;

// Experts are shared out as evenly as can be, in the order of ranks.
constexpr int64_t first_expert(int64_t experts, int64_t rank, int64_t ranks) {
  return experts * rank / ranks;
}

// Where a sequence of one rank stands among those of all: a unit is so many sequences that stay
// together (a balance group), and rank r of R has the units r, r + R, .. of a step.
constexpr int64_t global_sequence(int64_t local, int64_t sequences_per_unit, int64_t rank,
                                  int64_t ranks) {
  const int64_t unit = local / sequences_per_unit * ranks + rank;
  return unit * sequences_per_unit + local % sequences_per_unit;
}

// What travelled in a forward pass, for the backward pass; absent where there is one rank. "Came":
// what came to this rank's experts, from itself too. Lists are I32 in host memory.
struct ExchangeTape {
  TensorView sent_token;       // [tokens * min(top_k, ranks)]: by receiver, ascending
  TensorView came_place;       // [came]: by sender, ascending: where the token lies in x
  TensorView came_row;         // [rows]: by the rank whose token it is, ascending
  TensorView counts;           // [3, ranks]: tokens sent to, tokens come from, rows for each rank
  TensorView starts;           // [sequences + 1]: tokens of x by the sequences of all ranks
  kernels::DispatchPlan plan;  // of this rank's experts, over x
  TensorView x;                // [came, hidden], operand type: in the order of all ranks' sequences

  explicit operator bool() const { return static_cast<bool>(x); }
};

// What only a running exchange needs.
struct ExchangeWorkspace {
  TensorView notes_sent;     // [sent, top_k + 1] I32: sequence, and this receiver's experts or -1
  TensorView notes_come;     // [came, top_k + 1] I32
  TensorView index;          // [came, top_k] I32: this rank's experts in the order of x, or -1
  TensorView rank_of_token;  // [came] I32: in the order of x
  TensorView outbox;         // bytes: rows in the order in which they go
  TensorView inbox;          // bytes: rows in the order in which they come
  TensorView d_out;          // [came, hidden], operand type: in the order of x
  TensorView gate_of_row;    // [rows], of the experts' plan
  TensorView d_gate_of_row;  // [rows]
  TensorView home;           // [tokens * top_k, hidden], operand type: this rank's rows, come back
  TensorView unit_offsets;   // [own experts, sequences of a rank + 1] I32: rows of one rank's unit
};

struct ExchangeSize {
  int64_t rank = 0;
  int64_t ranks = 1;
  int64_t max_tokens = 0;  // of one rank
  int64_t max_sequences = 0;
  int64_t hidden = 0;
  int64_t num_experts = 0;  // of all ranks
  int64_t top_k = 0;
  DType operand = DType::F32;

  int64_t own_experts() const;
  int64_t max_sent() const { return max_tokens * std::min(top_k, ranks); }
  int64_t max_came() const { return max_tokens * ranks; }
  int64_t max_rows() const { return max_came() * std::min(top_k, own_experts()); }
};
// Room for whatever may come: all tokens of all ranks.
ExchangeTape allocate_exchange_tape(const ExchangeSize& size, tensor::Arena& arena);
ExchangeWorkspace allocate_exchange_workspace(const ExchangeSize& size, tensor::Arena& arena);

class Exchange {
 public:
  // `plan`: of this rank's tokens over all experts; an absent tape: there is one rank. All three
  // are looked at as long as this lives.
  Exchange(const Context& context, const kernels::DispatchPlan& plan, const ExchangeTape& tape,
           const ExchangeWorkspace& workspace);

  bool is_alone() const { return group_ == nullptr; }

  // Tells every rank what will come to its experts, and plans this rank's. In the forward pass,
  // once this rank's own plan is made.
  struct Routes {
    TensorView index;            // [tokens, top_k] I32
    TensorView sequence_starts;  // [sequences + 1] I32
    int64_t sequences_per_unit = 1;
  };
  void announce(const Routes& routes) const;

  // The plan of this rank's experts, cut to the rows that came.
  kernels::DispatchPlan experts_plan() const;
  TensorView experts_x() const;  // the tokens of that plan, once they are sent
  // Where every rank brings one unit: the rows of that plan by (expert, sequence of the unit that
  // `rank` brings). Holds until the next call.
  TensorView sequence_offsets_of_unit(int64_t rank, int64_t sequences_per_unit) const;

  // One row per token -> one per token that came: each travels once to each rank that owns some of
  // its experts. Results lie in `room`; alone they are what was given.
  TensorView send(const TensorView& tokens, const TensorView& room) const;
  // Rows of this rank's plan -> rows of the experts' plan, and back again.
  TensorView send_rows(const TensorView& rows, const TensorView& room) const;
  TensorView bring_back(const TensorView& rows, const TensorView& room) const;

 private:
  // Which part of what travels is of which rank.
  enum Count : uint8_t { sent, came, rows };
  std::span<int32_t> counts(Count which) const;
  int64_t total(Count which) const;

  void note_tokens(const Routes& routes) const;
  void order_tokens(int64_t sequences_per_unit) const;
  void list_rows() const;

  const Context& context_;
  const kernels::DispatchPlan& plan_;
  const ExchangeTape& tape_;
  const ExchangeWorkspace& workspace_;
  comm::Group* group_ = nullptr;  // absent: alone
};

}  // namespace dsmoe::moe
