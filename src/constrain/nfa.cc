// Building, with a bound on the size; ranges of characters as ranges of bytes.
#include "constrain/nfa.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe::constrain {
namespace {

constexpr int32_t kMaxNodes = 1 << 18;
constexpr std::size_t kMaxRules = 2048;
constexpr std::size_t kMaxEdges = std::size_t{1} << 20;

}  // namespace

int32_t Nfa::add_node() {
  if (num_nodes() >= kMaxNodes) {
    fail(ErrorKind::input, "{}: too large: all of it together needs more than {} states", place(),
         kMaxNodes);
  }
  first_.push_back(-1);
  node_places_.push_back(static_cast<int32_t>(places_.size()) - 1);
  return num_nodes() - 1;
}

int32_t Nfa::add_rule(Rule rule) {
  if (rules_.size() >= kMaxRules) {
    fail(ErrorKind::input, "{}: too large: all of it together needs more than {} rules", place(),
         kMaxRules);
  }
  rules_.push_back(std::move(rule));
  return static_cast<int32_t>(rules_.size()) - 1;
}

int32_t Nfa::add_rule() {
  const int32_t start = add_node(), end = add_node();
  return add_rule({.start = start, .end = end, .place = place()});
}

int32_t Nfa::add_counted_rule() {
  const int32_t start = add_node();
  return add_rule({.start = start, .end = start, .is_counted = true, .place = place()});
}

void Nfa::add_edge(int32_t from, Edge edge) {
  if (edges_.size() >= kMaxEdges) {
    fail(ErrorKind::input, "{}: too large: all of it together needs more than {} steps", place(),
         kMaxEdges);
  }
  int32_t& first = first_[static_cast<std::size_t>(from)];
  edge.next = std::exchange(first, static_cast<int32_t>(edges_.size()));
  edges_.push_back(edge);
}

void Nfa::add_bytes(int32_t from, uint8_t low, uint8_t high, int32_t to) {
  add_edge(from, {.kind = EdgeKind::bytes, .low = low, .high = high, .target = to});
}

void Nfa::add_empty(int32_t from, int32_t to) {
  if (from != to) add_edge(from, {.kind = EdgeKind::empty, .target = to});
}

void Nfa::add_call(int32_t from, Call call, int32_t to) {
  const bool is_counted = rules_[static_cast<std::size_t>(call.rule)].is_counted;
  if (!is_counted) call.bounds = {};
  if (is_counted && call.bounds.least == 0) add_empty(from, to);
  if (is_counted && call.bounds.most == 0) return;
  const auto [known, is_new] = known_calls_.try_emplace(
      {static_cast<uint32_t>(call.rule), call.bounds.least, call.bounds.most},
      static_cast<int32_t>(calls_.size()));
  if (is_new) calls_.push_back(call);
  add_edge(from, {.kind = EdgeKind::call, .target = to, .call = known->second});
}

void Nfa::add_literal(int32_t from, std::string_view text, int32_t to) {
  if (text.empty()) return add_empty(from, to);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const int32_t next = i + 1 == text.size() ? to : add_node();
    add_bytes(from, byte, byte, next);
    from = next;
  }
}

void Nfa::add_characters(int32_t from, std::span<const CodePoints> ranges, int32_t to) {
  // Where the length of the UTF-8 form changes, and around the surrogates.
  static constexpr CodePoints kParts[] = {
      {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
  for (const CodePoints& range : ranges) {
    for (const CodePoints& part : kParts) {
      const uint32_t low = std::max(range.low, part.low), high = std::min(range.high, part.high);
      if (low <= high) add_utf8(from, low, high, to);
    }
  }
}

// All of the range has one length. Splits until the forms of both ends differ in one byte that is
// followed by nothing but full ranges of continuation bytes.
void Nfa::add_utf8(int32_t from, uint32_t low, uint32_t high, int32_t to) {
  for (int shift = 6; shift <= 18; shift += 6) {
    const uint32_t mask = (uint32_t{1} << shift) - 1;
    if ((low & ~mask) == (high & ~mask)) break;
    if ((low & mask) != 0) {
      add_utf8(from, low, low | mask, to);
      return add_utf8(from, (low | mask) + 1, high, to);
    }
    if ((high & mask) != mask) {
      add_utf8(from, low, (high & ~mask) - 1, to);
      return add_utf8(from, high & ~mask, high, to);
    }
  }
  std::string first, last;
  append_utf8(first, low);
  append_utf8(last, high);
  for (std::size_t i = 0; i < first.size(); ++i) {
    const int32_t next = i + 1 == first.size() ? to : add_node();
    add_bytes(from, static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), next);
    from = next;
  }
}

}  // namespace dsmoe::constrain
