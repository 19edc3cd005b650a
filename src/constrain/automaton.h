// Rules made deterministic: at most one edge per byte and per call. What an answer must look like.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "constrain/nfa.h"
#include "constrain/vocabulary.h"

namespace dsmoe::constrain {

inline constexpr int32_t kNever = 1 << 30;  // tokens: it cannot be done

struct ByteEdge {
  uint8_t low = 0, high = 0;
  int32_t target = 0;
};
struct CallEdge {
  int32_t call = 0;  // into calls()
  int32_t target = 0;
};

struct State {
  int32_t rule = 0;
  uint32_t first_byte = 0, num_bytes = 0;  // edges, ascending
  uint32_t first_call = 0, num_calls = 0;
  bool is_final = false;  // the rule may end here; of a counted one: an item
  int32_t rest = kNever;  // tokens that certainly suffice to come to such a state
};

struct AutomatonRule {
  int32_t start = 0;
  int32_t rank = 0;  // above those of the rules that call it before they write anything
  bool is_counted = false;
  int32_t cost = kNever;      // tokens that certainly suffice for one of its items, not empty
  std::bitset<256> followed;  // by such bytes
  std::string place;
};

class Automaton {
 public:
  // `root` is the rule of a whole answer. Throws Error(input) that names the place: where there are
  // too many states, where a rule refers to itself with nothing in between, where no answer ends.
  Automaton(const Nfa& nfa, int32_t root, const Vocabulary& vocabulary);

  const State& state(int32_t index) const { return states_[static_cast<std::size_t>(index)]; }
  const AutomatonRule& rule(int32_t index) const { return rules_[static_cast<std::size_t>(index)]; }
  const AutomatonRule& rule_of(int32_t state_idx) const { return rule(state(state_idx).rule); }
  const Call& call(int32_t index) const { return calls_[static_cast<std::size_t>(index)]; }
  std::span<const ByteEdge> byte_edges(const State& state) const {
    return std::span(byte_edges_).subspan(state.first_byte, state.num_bytes);
  }
  std::span<const CallEdge> call_edges(const State& state) const {
    return std::span(call_edges_).subspan(state.first_call, state.num_calls);
  }
  // -1: none.
  int32_t next(const State& state, uint8_t byte) const {
    for (const ByteEdge& edge : byte_edges(state)) {
      if (byte <= edge.high) return byte >= edge.low ? edge.target : -1;
    }
    return -1;
  }

  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }
  int32_t num_rules() const { return static_cast<int32_t>(rules_.size()); }
  std::size_t num_bytes() const {
    return states_.size() * sizeof(State) + byte_edges_.size() * sizeof(ByteEdge) +
           call_edges_.size() * sizeof(CallEdge) + rules_.size() * sizeof(AutomatonRule);
  }
  int32_t root() const { return root_; }
  bool may_be_empty() const { return may_be_empty_; }

 private:
  friend class Determiniser;
  friend class Distances;
  void rank_rules();
  void find_followers();
  void drop_dead_ends();

  std::vector<State> states_;
  std::vector<ByteEdge> byte_edges_;
  std::vector<CallEdge> call_edges_;
  std::vector<AutomatonRule> rules_;
  std::vector<Call> calls_;
  int32_t root_ = 0;
  bool may_be_empty_ = false;
};

// Fills State::rest and AutomatonRule::cost.
void find_distances(Automaton& automaton, const Vocabulary& vocabulary);

// n * item, no more than kNever.
inline int32_t times(int64_t n, int64_t item) {
  return item >= kNever || n * item >= kNever ? kNever : static_cast<int32_t>(n * item);
}
inline int32_t plus(int64_t a, int64_t b) {
  return a + b >= kNever ? kNever : static_cast<int32_t>(a + b);
}
// Of a call; a counted rule writes at least one item.
inline int32_t cost_of(const Automaton& automaton, const Call& call) {
  return times(std::max<int64_t>(1, call.bounds.least), automaton.rule(call.rule).cost);
}

}  // namespace dsmoe::constrain
