// For tests of the scheduler: pages that are only counted, and a server without a model.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "infer/engine/scheduler.h"

namespace dsmoe::infer {

// Counts instead of pages. What a sequence shares from the cache stays the cache's: it is not
// evictable meanwhile.
class CountedPages : public Pages {
 public:
  CountedPages(int64_t num_pages, int64_t page_tokens)
      : page_tokens_(page_tokens), free(num_pages) {}

  int64_t num_free() const override { return free; }
  int64_t num_evictable() const override { return evictable; }
  bool evict_one() override {
    if (evictable == 0) return false;
    --evictable;
    ++free;
    ++num_evicted;
    return true;
  }
  void reserve(Scheduled& sequence, int64_t length) override {
    const int64_t wanted = (length + page_tokens_ - 1) / page_tokens_ - sequence.num_pages;
    if (wanted <= 0) return;
    ASSERT_LE(wanted, free) << "pages that are not free";
    free -= wanted;
    sequence.num_pages += wanted;
  }
  void begin(Scheduled& sequence) override {
    begun.push_back(sequence.id);
    const int64_t known = cached_of[sequence.id];
    shared_[sequence.id] = known;
    evictable -= known;
    sequence.num_pages = known;
    sequence.num_forwarded = known * page_tokens_;
    if (on_begin) on_begin(sequence);
  }
  void give_up(Scheduled& sequence) override {
    given_up.push_back(sequence.id);
    take_back(sequence);
  }
  void take_back(Scheduled& sequence) {
    free += sequence.num_pages - shared_[sequence.id];
    evictable += std::exchange(shared_[sequence.id], 0);
    sequence.num_pages = sequence.num_forwarded = 0;
  }

 private:
  int64_t page_tokens_;
  std::map<uint64_t, int64_t> shared_;

 public:
  int64_t free, evictable = 0, num_evicted = 0;
  std::map<uint64_t, int64_t> cached_of;  // pages that the cache knows of a sequence's beginning
  std::vector<uint64_t> begun, given_up;
  std::function<void(Scheduled&)> on_begin;
};

struct Asked {
  int64_t prompt = 1, answer = 100;    // tokens
  uint64_t owner = 0, submission = 0;  // 0: one of its own
};

struct Stream : Scheduled {
  int64_t answer = 0, num_answered = 0;
};

// A server without a model: every forward pass gives each sequence that has no token left to
// compute one more, until its answer is complete.
class World {
 public:
  explicit World(const Scheduler::Options& options = {}, int64_t num_pages = 1000)
      : options_(options), pages(num_pages, options.page_tokens), scheduler(options) {}

  uint64_t add(const Asked& asked) {
    auto stream = std::make_unique<Stream>();
    stream->id = ++last_id_;
    stream->submission = asked.submission != 0 ? asked.submission : 1000 + last_id_;
    stream->owner = asked.owner;
    stream->num_tokens = asked.prompt;
    stream->goes_on = asked.answer > 1;
    stream->answer = asked.answer;
    ScheduledList one;
    one.push_back(std::move(stream));
    scheduler.add(std::move(one));
    return last_id_;
  }

  // The tokens each sequence computed, by id, and checks of what must hold in every step.
  std::map<uint64_t, int64_t> step(double seconds = 0) {
    const std::vector<Scheduler::Part> parts = scheduler.next_step(pages);
    std::map<uint64_t, int64_t> computed;
    int64_t sum = 0;
    for (const Scheduler::Part& part : parts) {
      EXPECT_TRUE(scheduler.is_running(*part.sequence));
      EXPECT_GT(part.num_tokens, 0);
      EXPECT_LE(part.num_tokens, part.sequence->num_tokens - part.sequence->num_forwarded);
      EXPECT_GE(part.sequence->num_pages * options_.page_tokens,
                part.sequence->num_forwarded + part.num_tokens);
      EXPECT_TRUE(computed.try_emplace(part.sequence->id, part.num_tokens).second) << "twice";
      sum += part.num_tokens;
    }
    EXPECT_LE(sum, options_.chunk_tokens);
    EXPECT_LE(static_cast<int64_t>(scheduler.running().size()), options_.max_batch);
    scheduler.learn(parts, seconds);
    for (const Scheduler::Part& part : parts) forward(static_cast<Stream&>(*part.sequence), part);
    ++num_steps;
    return computed;
  }

  void end(uint64_t id) {
    Scheduled* sequence = scheduler.find(id);
    ASSERT_NE(sequence, nullptr);
    pages.take_back(*sequence);
    EXPECT_NE(scheduler.remove(*sequence), nullptr);
    ended.push_back(id);
  }

  bool is_idle() const { return scheduler.running().empty() && scheduler.waiting().empty(); }
  bool has_ended(uint64_t id) const { return std::count(ended.begin(), ended.end(), id) > 0; }
  std::vector<uint64_t> ids_running() const {
    std::vector<uint64_t> ids;
    for (const auto& sequence : scheduler.running()) ids.push_back(sequence->id);
    return ids;
  }
  void step_until(const std::function<bool()>& is_done) {
    for (int steps = 0; !is_done(); ++steps) {
      ASSERT_LT(steps, 2000);
      step();
    }
  }
  // Steps until it is done; -1: more than `most`.
  int steps_until_end(uint64_t id, int most = 2000) {
    for (int steps = 1; steps <= most; ++steps) {
      step();
      if (has_ended(id)) return steps;
    }
    return -1;
  }

 private:
  void forward(Stream& stream, const Scheduler::Part& part) {
    stream.num_forwarded += part.num_tokens;
    if (stream.num_forwarded < stream.num_tokens) return;
    if (first_token_at.try_emplace(stream.id, num_steps + 1).second) order.push_back(stream.id);
    if (++stream.num_answered == stream.answer) return end(stream.id);
    ++stream.num_tokens;
  }

  Scheduler::Options options_;
  uint64_t last_id_ = 0;

 public:
  CountedPages pages;
  Scheduler scheduler;
  std::map<uint64_t, int> first_token_at;  // the step, from 1
  std::vector<uint64_t> order;             // of first tokens
  std::vector<uint64_t> ended;
  int num_steps = 0;
};

using Computed = std::map<uint64_t, int64_t>;
using Ids = std::vector<uint64_t>;

// Beside those who decode: always the least, or as much as a step holds.
inline constexpr Scheduler::Options kImpatient{.patience_seconds = 0, .patience_steps = 0};
inline constexpr Scheduler::Options kPatient{.patience_seconds = 1e9};
constexpr Scheduler::Options one_at_a_time() { return {.max_batch = 1}; }

}  // namespace dsmoe::infer
