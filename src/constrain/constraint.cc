// Masks: those of the states, put together for who called them.
#include "constrain/constraint.h"

#include <time.h>

#include <algorithm>

#include "base/error.h"

namespace dsmoe::constrain {
namespace {

// Preparing ends after so much work; what is missing then is made when an answer comes there.
constexpr double kPreparingSeconds = 0.2;
constexpr std::size_t kMaxMaskBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxFrames = std::size_t{1} << 14;
constexpr std::size_t kMaxSteps = std::size_t{1} << 20;  // of heads for one token, some 0.1 s

Automaton automaton_of(const Shape& shape, const Vocabulary& vocabulary) {
  Nfa nfa;
  nfa.set_place(shape.name());
  const int32_t root = nfa.add_rule();
  const Nfa::Rule rule = nfa.rules()[static_cast<std::size_t>(root)];
  shape.write(nfa, rule.start, rule.end);
  return {nfa, root, vocabulary};
}

// Of the processor, not of the clock on the wall: a busy machine must not make answers slower
// later.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void add(TokenBits& to, const TokenBits& from) {
  for (std::size_t w = 0; w < from.size(); ++w) to[w] |= from[w];
}

}  // namespace

Constraint::Constraint(const Shape& shape, std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)),
      automaton_(automaton_of(shape, *vocabulary_)),
      masks_(static_cast<std::size_t>(automaton_.num_states())) {
  prepare_masks();
}

int32_t Constraint::shortest() const {
  return automaton_.may_be_empty() ? 0 : automaton_.rule(automaton_.root()).cost;
}

std::size_t Constraint::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return sizeof(*this) + automaton_.num_bytes() + masks_.size() * sizeof(masks_[0]) + mask_bytes_;
}

void Constraint::prepare_masks() {
  const double start = thread_seconds();
  for (int32_t s = 0; s < automaton_.num_states(); ++s) {
    const State& state = automaton_.state(s);
    if (state.num_bytes == 0 || state.rest >= kNever) continue;
    if (thread_seconds() - start > kPreparingSeconds) return;
    if (mask_bytes_ > kMaxMaskBytes / 2) return;
    local_mask(s);
  }
}

std::shared_ptr<const LocalMask> Constraint::local_mask(int32_t state_idx) const {
  const auto index = static_cast<std::size_t>(state_idx);
  {
    const std::lock_guard lock(mutex_);
    if (masks_[index]) return masks_[index];
  }
  auto made =
      std::make_shared<const LocalMask>(find_local_mask(automaton_, *vocabulary_, state_idx));
  const std::lock_guard lock(mutex_);
  if (masks_[index]) return masks_[index];
  mask_bytes_ += made->num_bytes();
  if (mask_bytes_ > kMaxMaskBytes) {
    std::fill(masks_.begin(), masks_.end(), nullptr);
    mask_bytes_ = made->num_bytes();
  }
  return masks_[index] = std::move(made);
}

Matcher::Matcher(std::shared_ptr<const Constraint> constraint)
    : constraint_(std::move(constraint)),
      frames_(constraint_->automaton()),
      stepper_(constraint_->automaton(), frames_) {
  stepper_.begin(here_);
}

void Matcher::take(int32_t token) {
  for (const char byte : constraint_->vocabulary().bytes(token)) {
    stepper_.step(here_, static_cast<uint8_t>(byte), next_);
    std::swap(here_, next_);
  }
  if (here_.is_dead() || constraint_->vocabulary().bytes(token).empty()) {
    fail(ErrorKind::input, "token {} may not come here", token);
  }
  if (frames_.size() > kMaxFrames) tidy();
}

// Frames of places that were left are forgotten. Callers have lower numbers than what they called,
// so one pass upwards keeps those that are wanted.
void Matcher::tidy() {
  std::vector<bool> wanted(frames_.size());
  for (const Head& head : here_.heads) wanted[static_cast<std::size_t>(head.frame)] = true;
  for (std::size_t f = wanted.size(); f-- > 0;) {
    if (!wanted[f]) continue;
    for (const Head& back : frames_.returns(static_cast<int32_t>(f))) {
      wanted[static_cast<std::size_t>(back.frame)] = true;
    }
  }
  Frames kept(constraint_->automaton());
  std::vector<int32_t> renamed(wanted.size());
  renamed[Frames::kUnknown] = Frames::kUnknown;
  for (std::size_t f = kept.size(); f < wanted.size(); ++f) {
    if (!wanted[f]) continue;
    const auto frame = static_cast<int32_t>(f);
    std::vector<Head> returns(frames_.returns(frame).begin(), frames_.returns(frame).end());
    for (Head& back : returns) back.frame = renamed[static_cast<std::size_t>(back.frame)];
    std::sort(returns.begin(), returns.end());
    renamed[f] = kept.intern(returns, frames_.bounds(frame));
  }
  for (Head& head : here_.heads) head.frame = renamed[static_cast<std::size_t>(head.frame)];
  std::sort(here_.heads.begin(), here_.heads.end());
  frames_.replace(std::move(kept));
}

void Matcher::allowed(int64_t tokens_left, TokenBits& bits) {
  bits.assign(constraint_->vocabulary().num_words(), 0);
  // Too little is left in any case: what is written is the beginning of an answer.
  const bool can_close = here_.rest(frames_) <= tokens_left;
  const auto most_rest =
      can_close ? static_cast<int32_t>(std::min<int64_t>(tokens_left - 1, kNever - 1)) : kNever - 1;
  const std::size_t num_frames = frames_.size();
  for (const Head& head : here_.heads) add_head(head, most_rest, bits);
  frames_.shrink(num_frames);
}

void Matcher::add_head(const Head& head, int32_t most_rest, TokenBits& bits) {
  const std::shared_ptr<const LocalMask> mask = constraint_->local_mask(head.state);
  const AutomatonRule& rule = constraint_->automaton().rule_of(head.state);
  const Bounds bounds = rule.is_counted ? frames_.bounds(head.frame) : Bounds{};
  const int32_t rest_behind = frames_.rest(head.frame);
  // Items that are still to come after those begun here, and what they cost.
  const auto rest_with = [&](uint32_t items, int32_t rest) {
    const uint32_t begun = head.count + items;
    const int32_t missing = begun < bounds.least ? times(bounds.least - begun, rule.cost) : 0;
    return plus(plus(rest, missing), rest_behind);
  };
  const bool all_fit = (bounds.most == kNoMost || head.count + mask->most_items <= bounds.most) &&
                       rest_with(0, mask->most_rest) <= most_rest;
  if (all_fit && !mask->all.empty()) {
    add(bits, mask->all);
  } else {
    for (const TokenClass& c : mask->classes) {
      if (bounds.most != kNoMost && head.count + c.items > bounds.most) continue;
      if (rest_with(c.items, c.rest) > most_rest) {
        was_narrowed_ = true;
        continue;
      }
      for (const int32_t token : c.tokens) set_token(bits, token);
      add(bits, c.bits);
    }
  }
  if (mask->remainders.num_nodes() > 0) add_remainders(head, mask->remainders, most_rest, bits);
}

void Matcher::add_remainders(const Head& head, const Remainders& remainders, int32_t most_rest,
                             TokenBits& bits) {
  const AutomatonRule& rule = constraint_->automaton().rule_of(head.state);
  const Bounds bounds = rule.is_counted ? frames_.bounds(head.frame) : Bounds{};
  const auto add_tokens = [&](std::size_t node, const Configuration& at) {
    const auto tokens = remainders.tokens_at(node);
    if (tokens.empty() || at.is_dead()) return;
    if (at.rest(frames_) > most_rest) {
      was_narrowed_ = true;
      return;
    }
    for (const Remainders::Token& token : tokens) {
      const uint64_t items = uint64_t{head.count} + token.items;
      if (items >= bounds.least && items <= bounds.most) set_token(bits, token.token);
    }
  };
  if (walk_.size() <= remainders.max_depth) walk_.resize(remainders.max_depth + 1);
  stepper_.leave(head.frame, walk_[0]);
  add_tokens(0, walk_[0]);
  std::size_t num_steps = 0;  // of this head's share
  for (std::size_t n = 1; n < remainders.num_nodes();) {
    const Remainders::Node& node = remainders.nodes[n];
    const Configuration& before = walk_[node.depth - 1];
    Configuration& at = walk_[node.depth];
    num_steps += before.heads.size();
    if (num_steps > kMaxSteps / here_.heads.size())
      fail(ErrorKind::input, "the constraint is too ambiguous");
    stepper_.step(before, node.byte, at);
    if (at.is_dead()) {
      n = node.end;
      continue;
    }
    add_tokens(n, at);
    ++n;
  }
}

}  // namespace dsmoe::constrain
