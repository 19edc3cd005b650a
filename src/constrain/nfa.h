// Rules as they are written down: nodes, edges by bytes, calls of other rules.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::constrain {

inline constexpr uint32_t kNoMost = std::numeric_limits<uint32_t>::max();

// How often something may come.
struct Bounds {
  uint32_t least = 0;
  uint32_t most = kNoMost;
  bool operator==(const Bounds&) const = default;
};

// What a rule stands for is written where it is called. The bounds matter to a counted rule only:
// one that is called writes its item so many times.
struct Call {
  int32_t rule = 0;
  Bounds bounds = {};
  bool operator==(const Call&) const = default;
};

struct CodePoints {
  uint32_t low = 0, high = 0;  // both included
};

class Nfa {
 public:
  enum class EdgeKind : uint8_t { bytes, empty, call };
  struct Edge {
    EdgeKind kind = EdgeKind::empty;
    uint8_t low = 0, high = 0;
    int32_t target = 0;
    int32_t call = 0;   // into calls()
    int32_t next = -1;  // of the same node
  };
  // `start` is where an item of a counted rule begins, and where it ends.
  struct Rule {
    int32_t start = 0;
    int32_t end = 0;
    bool is_counted = false;
    std::string place;  // of the text it was made from, for messages
  };

  // What the nodes to come are made from: a refusal names it.
  void set_place(std::string place) { places_.push_back(std::move(place)); }
  const std::string& place() const { return places_.back(); }
  const std::string& place_of(int32_t node) const {
    return places_[static_cast<std::size_t>(node_places_[static_cast<std::size_t>(node)])];
  }

  // Throws Error(input) when there are too many.
  int32_t add_node();
  int32_t add_rule();
  // The rule of that name; -1, and to be set, where it is new.
  int32_t& shared_rule(std::string_view name) {
    return shared_rules_.try_emplace(std::string(name), -1).first->second;
  }
  int32_t add_counted_rule();  // its item leads from `start` to `start`, begins with a byte

  void add_bytes(int32_t from, uint8_t low, uint8_t high, int32_t to);
  void add_empty(int32_t from, int32_t to);
  void add_call(int32_t from, Call call, int32_t to);
  void add_literal(int32_t from, std::string_view text, int32_t to);
  // One character of the ranges, as UTF-8; surrogates are left out.
  void add_characters(int32_t from, std::span<const CodePoints> ranges, int32_t to);

  int32_t num_nodes() const { return static_cast<int32_t>(first_.size()); }
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Call>& calls() const { return calls_; }
  template <class F>
  void each_edge(int32_t node, F&& f) const {
    for (int32_t e = first_[static_cast<std::size_t>(node)]; e >= 0;) {
      const Edge& edge = edges_[static_cast<std::size_t>(e)];
      e = edge.next;
      f(edge);
    }
  }

 private:
  int32_t add_rule(Rule rule);
  void add_edge(int32_t from, Edge edge);
  void add_utf8(int32_t from, uint32_t low, uint32_t high, int32_t to);

  std::vector<int32_t> first_;  // edge of each node, -1: none
  std::vector<Edge> edges_;
  std::vector<Rule> rules_;
  std::vector<Call> calls_;
  std::map<std::array<uint32_t, 3>, int32_t> known_calls_;
  std::map<std::string, int32_t> shared_rules_;
  std::vector<std::string> places_{"the constraint"};
  std::vector<int32_t> node_places_;  // into places_
};

}  // namespace dsmoe::constrain
