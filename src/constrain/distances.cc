// How many tokens certainly suffice to end an answer, from every state: what lets an answer be
// closed in time.
#include <algorithm>
#include <queue>
#include <tuple>

#include "constrain/automaton.h"

namespace dsmoe::constrain {

// First in bytes that are tokens by themselves, shortest ways first (a call costs as much as what
// it calls). Then, in the order in which the ways were found, in tokens: a way whose next bytes are
// one token takes one.
class Distances {
 public:
  Distances(Automaton& automaton, const Vocabulary& vocabulary)
      : a_(automaton), vocabulary_(vocabulary), num_states_(automaton.num_states()) {
    for (int byte = 0; byte < 256; ++byte) {
      has_byte_[byte] = vocabulary.has_byte(static_cast<uint8_t>(byte));
    }
    // A rule is a node too, behind the states: from its start through one item, never empty.
    const auto num_nodes = static_cast<std::size_t>(num_states_ + a_.num_rules());
    bytes_.assign(num_nodes, kNever);
    tokens_.assign(num_nodes, kNever);
    way_.resize(num_nodes);
    done_.resize(num_nodes);
    find_origins();
    find_bytes();
    find_tokens();
    for (int32_t s = 0; s < num_states_; ++s) a_.states_[at(s)].rest = tokens_[at(s)];
    for (int32_t r = 0; r < a_.num_rules(); ++r) a_.rules_[at(r)].cost = tokens_[at(node_of(r))];
  }

 private:
  enum class By : uint8_t { nothing, byte, call };
  struct Way {
    By by = By::nothing;
    uint8_t byte = 0;
    int32_t call = 0;
    int32_t target = 0;
  };
  struct Origin {
    int32_t from = 0;  // a state
    Way way;
  };

  static std::size_t at(int32_t index) { return static_cast<std::size_t>(index); }
  int32_t node_of(int32_t rule) const { return num_states_ + rule; }
  int32_t cost(const Call& call, const std::vector<int32_t>& of) const {
    return times(std::max<int64_t>(1, call.bounds.least), of[at(node_of(call.rule))]);
  }
  bool is_end(int32_t state) const { return a_.state(state).is_final; }

  // What leads to each state, and what calls each rule.
  void find_origins() {
    into_.resize(at(num_states_));
    calling_.resize(at(a_.num_rules()));
    for (int32_t s = 0; s < num_states_; ++s) {
      for (const ByteEdge& edge : a_.byte_edges(a_.state(s))) {
        for (int byte = edge.low; byte <= edge.high; ++byte) {
          if (!has_byte_[byte]) continue;
          into_[at(edge.target)].push_back(
              {s, {.by = By::byte, .byte = static_cast<uint8_t>(byte), .target = edge.target}});
          break;
        }
      }
      for (const CallEdge& edge : a_.call_edges(a_.state(s))) {
        const Origin origin{s, {.by = By::call, .call = edge.call, .target = edge.target}};
        into_[at(edge.target)].push_back(origin);
        calling_[at(a_.call(edge.call).rule)].push_back(origin);
      }
    }
  }

  void find_bytes() {
    for (int32_t s = 0; s < num_states_; ++s) {
      if (is_end(s)) reach(s, 0, {});
    }
    while (!queue_.empty()) {
      const auto [distance, turn, node] = queue_.top();
      queue_.pop();
      if (distance != bytes_[at(node)] || is_done(node)) continue;
      order_.push_back(node);
      done_[at(node)] = true;
      for (const Origin& origin :
           node < num_states_ ? into_[at(node)] : calling_[at(node - num_states_)]) {
        relax(origin);
      }
    }
  }

  bool is_done(int32_t node) const { return done_[at(node)]; }

  void relax(const Origin& origin) {
    const Way& way = origin.way;
    const int32_t step = way.by == By::byte ? 1 : cost(a_.call(way.call), bytes_);
    const int32_t total = plus(step, bytes_[at(way.target)]);
    if (total >= kNever) return;
    reach(origin.from, total, way);
    const int32_t rule = a_.state(origin.from).rule;
    if (a_.rule(rule).start == origin.from) reach(node_of(rule), total, way);
  }

  void reach(int32_t node, int32_t distance, const Way& way) {
    if (distance >= bytes_[at(node)]) return;
    bytes_[at(node)] = distance;
    way_[at(node)] = way;
    queue_.emplace(distance, turn_of(node), node);
  }

  // Of several at one distance what is called comes before who calls it: find_tokens() goes by
  // that.
  int32_t turn_of(int32_t node) const {
    return node < num_states_ ? a_.num_rules()
                              : a_.num_rules() - 1 - a_.rule(node - num_states_).rank;
  }

  void find_tokens() {
    for (const int32_t node : order_) {
      const Way& way = way_[at(node)];
      int32_t& best = tokens_[at(node)];
      if (way.by == By::nothing) {
        best = 0;
      } else if (way.by == By::call) {
        best = plus(cost(a_.call(way.call), tokens_), tokens_[at(way.target)]);
      } else {
        best = by_bytes(node);
      }
    }
  }

  // Along the way as long as bytes follow bytes.
  int32_t by_bytes(int32_t node) const {
    int32_t best = kNever;
    int64_t place = -1;
    const Way* way = &way_[at(node)];
    while (way->by == By::byte) {
      place = vocabulary_.child(place, way->byte);
      if (place < 0) break;
      if (!vocabulary_.tokens_at(static_cast<std::size_t>(place)).empty()) {
        best = std::min(best, plus(1, tokens_[at(way->target)]));
      }
      way = &way_[at(way->target)];
    }
    return best;
  }

  Automaton& a_;
  const Vocabulary& vocabulary_;
  int32_t num_states_;
  bool has_byte_[256];
  std::vector<std::vector<Origin>> into_, calling_;
  std::vector<int32_t> bytes_, tokens_;
  std::vector<Way> way_;
  std::vector<int32_t> order_;  // nearest first
  std::vector<bool> done_;
  using Reached = std::tuple<int32_t, int32_t, int32_t>;  // distance, turn, node
  std::priority_queue<Reached, std::vector<Reached>, std::greater<>> queue_;
};

void find_distances(Automaton& automaton, const Vocabulary& vocabulary) {
  const Distances distances(automaton, vocabulary);
}

}  // namespace dsmoe::constrain
