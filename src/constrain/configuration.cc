// One byte further: edges, then returns to the callers, then calls.
#include "constrain/configuration.h"

#include <algorithm>

#include "base/error.h"

namespace dsmoe::constrain {
namespace {

constexpr std::size_t kMaxHeads = 512;

}  // namespace

Frames::Frames(const Automaton& automaton) : automaton_(automaton), buckets_(kBuckets, -1) {
  frames_.resize(2);
  // Counts as it goes: the caller will say how many there may be.
  frames_[kUnknown].bounds = {.least = 0, .most = kNoMost - 1};
}

std::span<const Head> Frames::returns(int32_t frame) const {
  const Frame& f = frames_[static_cast<std::size_t>(frame)];
  return std::span(returns_).subspan(f.first, f.count);
}

int32_t Frames::rest(const Head& head) const {
  const State& state = automaton_.state(head.state);
  const AutomatonRule& rule = automaton_.rule(state.rule);
  int32_t rest = plus(state.rest, this->rest(head.frame));
  if (rule.is_counted && head.count < bounds(head.frame).least) {
    rest = plus(rest, times(bounds(head.frame).least - head.count, rule.cost));
  }
  return rest;
}

int32_t Frames::intern(std::span<const Head> returns, Bounds bounds) {
  uint64_t hash = bounds.least * uint64_t{31} + bounds.most;
  for (const Head& head : returns) {
    for (const uint64_t part : {uint64_t(head.state), uint64_t{head.count}, uint64_t(head.frame)}) {
      hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
  }
  const auto bucket = static_cast<uint32_t>(hash % kBuckets);
  for (int32_t f = buckets_[bucket]; f >= 0; f = frames_[static_cast<std::size_t>(f)].next) {
    if (this->bounds(f) == bounds && std::ranges::equal(this->returns(f), returns)) return f;
  }
  const auto frame = static_cast<int32_t>(frames_.size());
  int32_t least_rest = kNever;
  for (const Head& head : returns) least_rest = std::min(least_rest, rest(head));
  // Where there is no memory for it, nothing has changed that anybody looks at.
  const auto first = static_cast<uint32_t>(returns_.size());
  returns_.insert(returns_.end(), returns.begin(), returns.end());
  frames_.push_back({.first = first,
                     .count = static_cast<uint32_t>(returns.size()),
                     .bounds = bounds,
                     .rest = least_rest,
                     .next = buckets_[bucket],
                     .bucket = bucket});
  buckets_[bucket] = frame;
  return frame;
}

void Frames::shrink(std::size_t size) {
  for (; frames_.size() > size; frames_.pop_back()) {
    const Frame& last = frames_.back();
    buckets_[last.bucket] = last.next;
    returns_.resize(last.first);
  }
}

void Frames::replace(Frames&& other) {
  frames_ = std::move(other.frames_);
  returns_ = std::move(other.returns_);
  buckets_ = std::move(other.buckets_);
}

int32_t Configuration::rest(const Frames& frames) const {
  int32_t least = may_end ? 0 : kNever;
  for (const Head& head : heads) least = std::min(least, frames.rest(head));
  return least;
}

void Stepper::begin(Configuration& out) {
  landed_.clear();
  pending_.clear();
  out.heads.clear();
  out.exits.clear();
  out.may_end = automaton_.may_be_empty();
  const int32_t start = automaton_.rule(automaton_.root()).start;
  add({.state = start, .frame = Frames::kOutermost}, out);
  follow_calls(out);
}

void Stepper::leave(int32_t frame, Configuration& out) {
  landed_.clear();
  const std::span<const Head> returns = frames_.returns(frame);
  landed_.assign(returns.begin(), returns.end());
  settle(out);
  if (frame == Frames::kOutermost) out.may_end = true;
}

void Stepper::step(const Configuration& from, uint8_t byte, Configuration& out) {
  landed_.clear();
  for (const Head& head : from.heads) {
    const State& state = automaton_.state(head.state);
    const int32_t target = automaton_.next(state, byte);
    if (target < 0) continue;
    uint32_t count = head.count;
    const AutomatonRule& rule = automaton_.rule(state.rule);
    if (rule.is_counted && rule.start == head.state) {  // an item begins
      const Bounds bounds = frames_.bounds(head.frame);
      if (count >= bounds.most) continue;
      // Where nothing depends on it any more it stays: equal places are to look equal.
      if (bounds.most != kNoMost || count < bounds.least) ++count;
    }
    land({.state = target, .count = count, .frame = head.frame});
  }
  settle(out);
}

void Stepper::settle(Configuration& out) {
  out.heads.clear();
  out.exits.clear();
  out.may_end = false;
  pending_.clear();
  for (std::size_t i = 0; i < landed_.size(); ++i) {
    const Head head = landed_[i];
    const State& state = automaton_.state(head.state);
    if (!state.is_final) continue;
    if (automaton_.rule(state.rule).is_counted && head.count < frames_.bounds(head.frame).least) {
      continue;
    }
    if (head.frame == Frames::kOutermost) {
      out.may_end = true;
    } else if (head.frame == Frames::kUnknown) {
      out.exits.push_back(head.count);
    } else {
      for (const Head& back : frames_.returns(head.frame)) {
        if (std::find(landed_.begin(), landed_.end(), back) == landed_.end()) land(back);
      }
      if (landed_.size() > kMaxHeads) fail(ErrorKind::input, "the constraint is too ambiguous");
    }
  }
  if (out.exits.size() > 1) std::sort(out.exits.begin(), out.exits.end());
  if (landed_.size() > 1) merge();
  for (const Head& head : landed_) add(head, out);
  follow_calls(out);
  if (out.heads.size() > 1) std::sort(out.heads.begin(), out.heads.end());
}

// Heads that differ in nothing but their callers become one.
void Stepper::merge() {
  std::sort(landed_.begin(), landed_.end());
  std::size_t num_kept = 0;
  for (std::size_t begin = 0; begin < landed_.size();) {
    std::size_t end = begin + 1;
    Head head = landed_[begin];
    callers_.clear();
    const Bounds bounds = frames_.bounds(head.frame);
    for (; end < landed_.size() && landed_[end].state == head.state &&
           landed_[end].count == head.count && head.frame > Frames::kUnknown &&
           frames_.bounds(landed_[end].frame) == bounds;
         ++end) {
      const std::span<const Head> more = frames_.returns(landed_[end].frame);
      callers_.insert(callers_.end(), more.begin(), more.end());
    }
    if (end > begin + 1) {
      const std::span<const Head> own = frames_.returns(head.frame);
      callers_.insert(callers_.end(), own.begin(), own.end());
      std::sort(callers_.begin(), callers_.end());
      callers_.erase(std::unique(callers_.begin(), callers_.end()), callers_.end());
      head.frame = frames_.intern(callers_, bounds);
    }
    landed_[num_kept++] = head;
    begin = end;
  }
  landed_.resize(num_kept);
}

void Stepper::add(const Head& head, Configuration& out) {
  const State& state = automaton_.state(head.state);
  if (state.num_bytes > 0) out.heads.push_back(head);
  for (const CallEdge& edge : automaton_.call_edges(state)) {
    pending_.push_back({.call = edge.call,
                        .back = {.state = edge.target, .count = head.count, .frame = head.frame}});
  }
}

// Callers first: all who call a rule here are known before it is entered.
void Stepper::follow_calls(Configuration& out) {
  const auto is_later = [&](const Pending& a, const Pending& b) {
    const auto rank = [&](const Pending& p) {
      return automaton_.rule(automaton_.call(p.call).rule).rank;
    };
    return rank(a) != rank(b) ? rank(a) > rank(b) : a.call > b.call;
  };
  std::make_heap(pending_.begin(), pending_.end(), is_later);
  while (!pending_.empty()) {
    if (pending_.size() + out.heads.size() > kMaxHeads) {
      fail(ErrorKind::input, "the constraint is too ambiguous");
    }
    const int32_t call_idx = pending_.front().call;
    const Call& call = automaton_.call(call_idx);
    callers_.clear();
    while (!pending_.empty() && pending_.front().call == call_idx) {
      callers_.push_back(pending_.front().back);
      std::pop_heap(pending_.begin(), pending_.end(), is_later);
      pending_.pop_back();
    }
    std::sort(callers_.begin(), callers_.end());
    callers_.erase(std::unique(callers_.begin(), callers_.end()), callers_.end());
    const int32_t frame = frames_.intern(callers_, call.bounds);
    auto last = static_cast<std::ptrdiff_t>(pending_.size());
    add({.state = automaton_.rule(call.rule).start, .frame = frame}, out);
    while (last < static_cast<std::ptrdiff_t>(pending_.size())) {
      std::push_heap(pending_.begin(), pending_.begin() + ++last, is_later);
    }
  }
}

}  // namespace dsmoe::constrain
