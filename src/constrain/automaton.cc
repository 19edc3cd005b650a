// Sets of nodes become states; then what follows what, and which ways lead nowhere.
#include "constrain/automaton.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace dsmoe::constrain {
namespace {

constexpr std::size_t kMaxStates = std::size_t{1} << 15;
constexpr std::size_t kMaxMembers = std::size_t{1} << 21;  // of all sets together
// Edges and members looked at, less than a second. Few states may be much work: each looks at all
// edges of its nodes again.
constexpr std::size_t kMaxSteps = std::size_t{1} << 26;

}  // namespace

class Determiniser {
 public:
  Determiniser(const Nfa& nfa, Automaton& out)
      : nfa_(nfa), out_(out), mark_(static_cast<std::size_t>(nfa.num_nodes())) {
    find_nullable();
    out_.calls_ = nfa.calls();
    for (std::size_t r = 0; r < nfa.rules().size(); ++r) add_rule(static_cast<int32_t>(r));
  }

  bool is_nullable(int32_t rule) const { return nullable_[static_cast<std::size_t>(rule)]; }

 private:
  using Set = std::vector<int32_t>;  // nodes, ascending

  // A rule that may write nothing is left out where it is called, and then always writes something.
  void find_nullable() {
    nullable_.assign(nfa_.rules().size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t r = 0; r < nullable_.size(); ++r) {
        const Nfa::Rule& rule = nfa_.rules()[r];
        if (nullable_[r] || rule.is_counted) continue;
        const Set set = closure({rule.start});
        if (!std::binary_search(set.begin(), set.end(), rule.end)) continue;
        nullable_[r] = changed = true;
      }
    }
  }

  void count_steps(std::size_t steps, int32_t node) {
    num_steps_ += steps;
    if (num_steps_ > kMaxSteps) {
      fail(ErrorKind::input,
           "{}: too complex: to join its alternatives and repetitions takes more than {} steps",
           nfa_.place_of(node), kMaxSteps);
    }
  }

  Set closure(Set set) {
    ++stamp_;
    std::size_t num_edges = 0;
    for (const int32_t node : set) mark_[static_cast<std::size_t>(node)] = stamp_;
    for (std::size_t i = 0; i < set.size(); ++i) {
      nfa_.each_edge(set[i], [&](const Nfa::Edge& edge) {
        ++num_edges;
        const bool is_empty = edge.kind == Nfa::EdgeKind::empty ||
                              (edge.kind == Nfa::EdgeKind::call &&
                               nullable_[static_cast<std::size_t>(
                                   nfa_.calls()[static_cast<std::size_t>(edge.call)].rule)]);
        uint32_t& mark = mark_[static_cast<std::size_t>(edge.target)];
        if (is_empty && std::exchange(mark, stamp_) != stamp_) set.push_back(edge.target);
      });
    }
    count_steps(set.size() + num_edges, set.front());
    std::sort(set.begin(), set.end());
    return set;
  }

  void add_rule(int32_t rule_idx) {
    const Nfa::Rule& rule = nfa_.rules()[static_cast<std::size_t>(rule_idx)];
    known_.clear();
    sets_.clear();
    rule_idx_ = rule_idx;
    base_ = out_.num_states();
    out_.rules_.push_back({.start = base_, .is_counted = rule.is_counted, .place = rule.place});
    state_of({rule.start});
    for (std::size_t s = 0; s < sets_.size(); ++s) {
      const Set set = sets_[s];
      State& state = out_.states_[static_cast<std::size_t>(base_) + s];
      state.is_final = std::binary_search(set.begin(), set.end(), rule.end);
      add_edges(static_cast<std::size_t>(base_) + s, set);
    }
  }

  int32_t state_of(Set nodes) {
    const auto [found, is_new] =
        known_.try_emplace(closure(std::move(nodes)), static_cast<int32_t>(sets_.size()));
    if (is_new) {
      num_members_ += found->first.size();
      if (out_.states_.size() >= kMaxStates || num_members_ > kMaxMembers) {
        fail(ErrorKind::input,
             "{}: too complex: its alternatives and repetitions need more than {} states",
             nfa_.place_of(found->first.front()), kMaxStates);
      }
      sets_.push_back(found->first);
      out_.states_.push_back({.rule = rule_idx_});
    }
    return base_ + found->second;
  }

  void add_edges(std::size_t state_idx, const Set& set) {
    std::vector<Nfa::Edge> bytes;
    std::map<int32_t, Set> calls;
    std::vector<int> borders;
    for (const int32_t node : set) {
      nfa_.each_edge(node, [&](const Nfa::Edge& edge) {
        if (edge.kind == Nfa::EdgeKind::call) calls[edge.call].push_back(edge.target);
        if (edge.kind != Nfa::EdgeKind::bytes) return;
        bytes.push_back(edge);
        borders.push_back(edge.low);
        borders.push_back(edge.high + 1);
      });
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::sort(bytes.begin(), bytes.end(),
              [](const Nfa::Edge& a, const Nfa::Edge& b) { return a.low < b.low; });
    std::vector<ByteEdge> edges;
    for (std::size_t b = 0; b + 1 < borders.size(); ++b) {
      Set targets;
      std::size_t num_begun = 0;
      for (; num_begun < bytes.size() && bytes[num_begun].low <= borders[b]; ++num_begun) {
        if (bytes[num_begun].high >= borders[b]) targets.push_back(bytes[num_begun].target);
      }
      count_steps(num_begun, set.front());
      if (targets.empty()) continue;
      const int32_t target = state_of(unique(std::move(targets)));
      const auto low = static_cast<uint8_t>(borders[b]);
      const auto high = static_cast<uint8_t>(borders[b + 1] - 1);
      if (!edges.empty() && edges.back().target == target && edges.back().high + 1 == low) {
        edges.back().high = high;
      } else {
        edges.push_back({.low = low, .high = high, .target = target});
      }
    }
    std::vector<CallEdge> call_edges;
    for (auto& [call, targets] : calls) {
      call_edges.push_back({.call = call, .target = state_of(unique(std::move(targets)))});
    }
    State& state = out_.states_[state_idx];
    state.first_byte = static_cast<uint32_t>(out_.byte_edges_.size());
    state.num_bytes = static_cast<uint32_t>(edges.size());
    state.first_call = static_cast<uint32_t>(out_.call_edges_.size());
    state.num_calls = static_cast<uint32_t>(call_edges.size());
    out_.byte_edges_.insert(out_.byte_edges_.end(), edges.begin(), edges.end());
    out_.call_edges_.insert(out_.call_edges_.end(), call_edges.begin(), call_edges.end());
  }

  static Set unique(Set set) {
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    return set;
  }

  const Nfa& nfa_;
  Automaton& out_;
  std::vector<bool> nullable_;
  std::vector<uint32_t> mark_;
  uint32_t stamp_ = 0;
  std::map<Set, int32_t> known_;  // of the rule that is being made
  std::vector<Set> sets_;
  int32_t base_ = 0;
  int32_t rule_idx_ = 0;
  std::size_t num_members_ = 0, num_steps_ = 0;
};

Automaton::Automaton(const Nfa& nfa, int32_t root, const Vocabulary& vocabulary) : root_(root) {
  const Determiniser determiniser(nfa, *this);
  may_be_empty_ = determiniser.is_nullable(root);
  rank_rules();
  find_distances(*this, vocabulary);
  if (rule(root).cost >= kNever && !may_be_empty_) {
    const auto endless = std::find_if(rules_.begin(), rules_.end(),
                                      [](const AutomatonRule& r) { return r.cost >= kNever; });
    fail(ErrorKind::input,
         "{}: no answer satisfies this: it allows no value, refers to itself without an end, or "
         "needs bytes that the model's vocabulary lacks",
         endless->place);
  }
  drop_dead_ends();
  find_followers();
}

// A rule comes after those that call it before they write anything.
void Automaton::rank_rules() {
  enum class Colour : uint8_t { untouched, open, done };
  std::vector<Colour> colour(rules_.size(), Colour::untouched);
  struct Open {
    int32_t rule;
    uint32_t next_call;
  };
  int32_t next_rank = num_rules();
  for (int32_t first = 0; first < num_rules(); ++first) {
    std::vector<Open> open;
    const auto enter = [&](int32_t r) {
      colour[static_cast<std::size_t>(r)] = Colour::open;
      open.push_back({r, 0});
    };
    if (colour[static_cast<std::size_t>(first)] == Colour::untouched) enter(first);
    while (!open.empty()) {
      Open& top = open.back();
      const std::span<const CallEdge> calls = call_edges(state(rule(top.rule).start));
      if (top.next_call == calls.size()) {
        colour[static_cast<std::size_t>(top.rule)] = Colour::done;
        rules_[static_cast<std::size_t>(top.rule)].rank = --next_rank;
        open.pop_back();
        continue;
      }
      const int32_t called = call(calls[top.next_call++].call).rule;
      const Colour seen = colour[static_cast<std::size_t>(called)];
      if (seen == Colour::open) {
        fail(ErrorKind::input, "{}: it refers to itself with nothing in between",
             rule(called).place);
      }
      if (seen == Colour::untouched) enter(called);
    }
  }
}

// Edges from which no token leads on to an end.
void Automaton::drop_dead_ends() {
  for (State& s : states_) {
    const auto keep = [&](auto& edges, uint32_t first, uint32_t count, auto&& is_dead) {
      const auto begin = edges.begin() + first;
      return static_cast<uint32_t>(std::remove_if(begin, begin + count, is_dead) - begin);
    };
    const auto leads_nowhere = [&](int32_t target) { return state(target).rest >= kNever; };
    s.num_bytes = keep(byte_edges_, s.first_byte, s.num_bytes,
                       [&](const ByteEdge& edge) { return leads_nowhere(edge.target); });
    s.num_calls = keep(call_edges_, s.first_call, s.num_calls, [&](const CallEdge& edge) {
      return leads_nowhere(edge.target) || cost_of(*this, call(edge.call)) >= kNever;
    });
  }
}

// Which bytes may follow a rule: tokens that go on with others need not be looked at where it ends.
void Automaton::find_followers() {
  std::vector<std::bitset<256>> first(rules_.size());
  const auto first_of = [&](const State& s) {
    std::bitset<256> set;
    for (const ByteEdge& edge : byte_edges(s)) {
      for (int byte = edge.low; byte <= edge.high; ++byte) set.set(static_cast<std::size_t>(byte));
    }
    for (const CallEdge& edge : call_edges(s)) {
      set |= first[static_cast<std::size_t>(call(edge.call).rule)];
    }
    return set;
  };
  // Called rules have the higher rank: one pass suffices.
  std::vector<int32_t> order(rules_.size());
  for (int32_t r = 0; r < num_rules(); ++r) {
    order[static_cast<std::size_t>(num_rules() - 1 - rule(r).rank)] = r;
  }
  for (const int32_t r : order) first[static_cast<std::size_t>(r)] = first_of(state(rule(r).start));
  std::set<std::pair<int32_t, int32_t>> tails;  // a rule, and one that may be the last it calls
  for (const State& s : states_) {
    for (const CallEdge& edge : call_edges(s)) {
      const int32_t called = call(edge.call).rule;
      rules_[static_cast<std::size_t>(called)].followed |= first_of(state(edge.target));
      if (state(edge.target).is_final) tails.emplace(s.rule, called);
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [caller, called] : tails) {
      std::bitset<256>& set = rules_[static_cast<std::size_t>(called)].followed;
      const std::bitset<256> grown = set | rule(caller).followed;
      changed = changed || grown != set;
      set = grown;
    }
  }
}

}  // namespace dsmoe::constrain
