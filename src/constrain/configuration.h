// Where an answer stands: all the ways in which the rules may have written what there is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "constrain/automaton.h"

namespace dsmoe::constrain {

// A state, how many items its counted rule has begun, and who called its rule.
struct Head {
  int32_t state = 0;
  uint32_t count = 0;
  int32_t frame = 0;
  auto operator<=>(const Head&) const = default;
};

// Who waits for a rule to end. Equal frames are one: a configuration is a short list of numbers,
// whatever it went through. Several callers of one rule at one place share a frame, so there are
// never more heads than states, and ambiguity costs no more than that.
class Frames {
 public:
  static constexpr int32_t kOutermost = 0;  // nobody: the answer ends
  static constexpr int32_t kUnknown = 1;    // somebody; who does not matter

  explicit Frames(const Automaton& automaton);

  int32_t intern(std::span<const Head> returns, Bounds bounds);  // `returns` ascending
  std::span<const Head> returns(int32_t frame) const;
  Bounds bounds(int32_t frame) const { return frames_[static_cast<std::size_t>(frame)].bounds; }
  // Tokens that certainly suffice from a return to the end of the answer.
  int32_t rest(int32_t frame) const { return frames_[static_cast<std::size_t>(frame)].rest; }
  int32_t rest(const Head& head) const;

  // Frames made since are forgotten.
  std::size_t size() const { return frames_.size(); }
  void shrink(std::size_t size);
  void replace(Frames&& other);

 private:
  struct Frame {
    uint32_t first = 0, count = 0;  // of returns_
    Bounds bounds;
    int32_t rest = 0;
    int32_t next = -1;  // of the same hash
    uint32_t bucket = 0;
  };
  static constexpr std::size_t kBuckets = 4096;

  const Automaton& automaton_;
  std::vector<Frame> frames_;
  std::vector<Head> returns_;
  std::vector<int32_t> buckets_;
};

struct Configuration {
  std::vector<Head> heads;  // ascending; each has an edge by a byte
  bool may_end = false;     // what was written is a whole answer
  // Where the unknown caller would go on: items begun by then, ascending.
  std::vector<uint32_t> exits;

  bool is_dead() const { return heads.empty() && !may_end && exits.empty(); }
  int32_t rest(const Frames& frames) const;
};

// Not shared between threads: it keeps scratch.
class Stepper {
 public:
  Stepper(const Automaton& automaton, Frames& frames) : automaton_(automaton), frames_(frames) {}

  void begin(Configuration& out);
  // Replaces `out`. Throws Error(input) when there are too many ways.
  void step(const Configuration& from, uint8_t byte, Configuration& out);
  // Where the callers of a frame go on.
  void leave(int32_t frame, Configuration& out);

 private:
  struct Pending {
    int32_t call = 0;
    Head back;
    auto operator<=>(const Pending&) const = default;
  };
  void land(const Head& head) { landed_.push_back(head); }
  void settle(Configuration& out);
  void merge();
  void add(const Head& head, Configuration& out);
  void follow_calls(Configuration& out);

  const Automaton& automaton_;
  Frames& frames_;
  std::vector<Head> landed_;
  std::vector<Pending> pending_;
  std::vector<Head> callers_;
};

}  // namespace dsmoe::constrain
