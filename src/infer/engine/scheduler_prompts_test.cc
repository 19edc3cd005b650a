// Prompts beside streams, patience, and any traffic on any pool, without a model.
#include "base/rng.h"
#include "infer/engine/scheduler_world.h"

namespace dsmoe::infer {
namespace {

// --- Prompts beside streams

TEST(SchedulerPrompts, EachThatDecodesGetsATokenInEveryStep) {
  World world(kImpatient);
  for (int i = 0; i < 3; ++i) world.add({.prompt = 5});
  world.step();
  world.add({.prompt = 5000});
  for (int steps = 0; steps < 20; ++steps) {
    const Computed computed = world.step();
    for (const uint64_t id : {1, 2, 3}) EXPECT_EQ(computed.at(id), 1);
    EXPECT_EQ(computed.at(4), Scheduler::kLeastBeside);
  }
}

TEST(SchedulerPrompts, WhereNobodyDecodesALongPromptFillsTheStep) {
  World world(kImpatient);
  const uint64_t id = world.add({.prompt = 600});
  EXPECT_EQ(world.step().at(id), 256);
  EXPECT_EQ(world.step().at(id), 256);
  EXPECT_EQ(world.step().at(id), 88);
}

TEST(SchedulerPrompts, AShortOneIsReadBesideALongOne) {
  World world(kImpatient);
  const uint64_t long_one = world.add({.prompt = 200});
  const uint64_t short_one = world.add({.prompt = 24});
  EXPECT_EQ(world.step(), (Computed{{long_one, 8}, {short_one, 24}}));  // a quarter of 32
  EXPECT_EQ(world.first_token_at.at(short_one), 1);
}

TEST(SchedulerPrompts, ShortOnesThatKeepComingDoNotStopALongOne) {
  World world(kImpatient);
  const uint64_t oldest = world.add({.prompt = 200});
  int steps = 0;
  for (; !world.first_token_at.contains(oldest) && steps < 100; ++steps) {
    world.add({.prompt = 20, .answer = 2});
    world.add({.prompt = 20, .answer = 2});
    world.step();
  }
  EXPECT_LE(steps, 25);  // a quarter of 32 each
}

TEST(SchedulerPrompts, ThoseThatNobodyDecodesAfterFillTheStep) {
  World world(kImpatient);
  const uint64_t a = world.add({.prompt = 200, .answer = 1});
  const uint64_t b = world.add({.prompt = 24, .answer = 1});
  EXPECT_EQ(world.step(), (Computed{{a, 200}, {b, 24}}));
}

TEST(SchedulerPrompts, ThePlacesOfDecodingOnesComeOutOfTheStep) {
  World world({.max_batch = 16, .chunk_tokens = 16, .patience_seconds = 1e9});
  for (int i = 0; i < 10; ++i) world.add({.prompt = 1});
  world.step();
  const uint64_t id = world.add({.prompt = 100});
  EXPECT_EQ(world.step().at(id), 6);
}

TEST(SchedulerPrompts, AFullBatchOfStreamsLeavesNoRoomAndThePromptWaits) {
  World world({.max_batch = 5, .chunk_tokens = 5, .patience_seconds = 1e9});
  for (int i = 0; i < 4; ++i) world.add({.prompt = 1, .answer = 30});
  world.step();
  const uint64_t id = world.add({.prompt = 40, .answer = 1});
  EXPECT_EQ(world.step().at(id), 1);  // one at a time, but it goes on
  EXPECT_NE(world.steps_until_end(id, 60), -1);
}

// --- Patience

TEST(SchedulerPatience, WhatFitsIsLearntFromAStep) {
  World world({.patience_seconds = 0.02, .patience_steps = 0});
  world.add({});
  world.step();
  world.add({.prompt = 1000});
  world.step(0.01);  // 32 in half of the patience
  EXPECT_EQ(world.scheduler.tokens_beside(), 64);
  world.step(0.04);  // 64 in twice of it: down at once
  EXPECT_EQ(world.scheduler.tokens_beside(), 32);
}

TEST(SchedulerPatience, NeverMoreThanAStepNorLessThanTheLeast) {
  World world(kPatient);
  world.add({});
  world.step();
  world.add({.prompt = 10000});
  world.step(0.001);
  EXPECT_EQ(world.scheduler.tokens_beside(), 256);
  World slow(kImpatient);
  slow.add({});
  slow.step();
  slow.add({.prompt = 10000});
  slow.step(1000);
  EXPECT_EQ(slow.scheduler.tokens_beside(), Scheduler::kLeastBeside);
}

TEST(SchedulerPatience, AFewTokensOfPromptSayLittle) {
  World world({.patience_seconds = 0.02, .patience_steps = 0});
  world.add({});
  world.step();
  world.add({.prompt = 10});
  world.step(1e-5);
  EXPECT_EQ(world.scheduler.tokens_beside(), Scheduler::kLeastBeside);
}

TEST(SchedulerPatience, SeveralDecodingStepsMayBeLongerThanTheSeconds) {
  World world({.patience_seconds = 0.001, .patience_steps = 8});
  world.add({});
  world.step();
  world.step(0.01);  // decodes only
  world.add({.prompt = 1000});
  world.step(0.04);  // 32 tokens took half of 8 * 0.01
  EXPECT_EQ(world.scheduler.tokens_beside(), 64);
}

TEST(SchedulerPatience, OneDecodingStepThatWasHeldUpSaysLittle) {
  World world({.patience_seconds = 0.001, .patience_steps = 8});
  world.add({});
  world.step();
  world.step(0.01);
  world.step(5);  // something else ran on the machine
  world.add({.prompt = 1000});
  world.step(0.042);  // half of 8 * 0.0105
  EXPECT_EQ(world.scheduler.tokens_beside(), 64);
}

// --- Odd numbers

TEST(SchedulerOdd, PagesAndStepsOfOneToken) {
  World world({.max_batch = 1, .chunk_tokens = 1, .page_tokens = 1}, 12);
  for (int i = 0; i < 3; ++i) world.add({.prompt = 5, .answer = 8});
  for (int steps = 0; !world.is_idle() && steps < 100; ++steps) world.step();
  EXPECT_EQ(world.ended, (Ids{1, 2, 3}));
  EXPECT_EQ(world.num_steps, 3 * (5 + 7));
}

// Whatever comes and goes: everyone ends, no page is lost, and whoever decodes is in every step in
// which it runs.
TEST(SchedulerOdd, AnyTrafficEndsWithAllPagesFree) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Rng rng{.seed = seed, .purpose = RngPurpose::test};
    uint64_t draws = 0;
    const auto below = [&](int64_t bound) {
      return static_cast<int64_t>(rng.at(draws++).words[0] % static_cast<uint32_t>(bound));
    };
    const int64_t page_tokens = 1 + below(8), context = 20 + below(60);
    const int64_t one_context = (context + page_tokens - 1) / page_tokens;
    const int64_t batch = 1 + below(6), pool = one_context + below(2 * one_context);
    World world({.max_batch = batch,
                 .chunk_tokens = batch + below(40),
                 .page_tokens = page_tokens,
                 .patience_seconds = below(2) * 1e9},
                pool);
    int64_t to_come = 30;
    for (int steps = 0; (to_come > 0 || !world.is_idle()) && steps < 20000; ++steps) {
      if (to_come > 0 && below(3) == 0) {
        const int64_t prompt = 1 + below(context - 1);
        const int64_t answer = 1 + below(context + 1 - prompt);
        world.add({.prompt = prompt,
                   .answer = answer,
                   .owner = static_cast<uint64_t>(below(3)),
                   .submission = static_cast<uint64_t>(1 + below(5))});
        --to_come;
      }
      Ids decoding;
      for (const auto& sequence : world.scheduler.running()) {
        if (sequence->num_tokens - sequence->num_forwarded == 1) decoding.push_back(sequence->id);
      }
      const std::size_t preempted = world.pages.given_up.size();
      const Computed computed = world.step(1e-3);
      for (const uint64_t id : decoding) {
        const Ids& all = world.pages.given_up;
        const bool had_to_go =
            std::count(all.begin() + static_cast<std::ptrdiff_t>(preempted), all.end(), id) > 0;
        EXPECT_TRUE(computed.contains(id) || had_to_go) << "seed " << seed;
      }
      if (below(40) == 0 && !world.scheduler.running().empty()) {
        world.end(world.scheduler.running().back()->id);
      }
    }
    EXPECT_TRUE(world.is_idle()) << "seed " << seed;
    EXPECT_EQ(world.ended.size(), 30u) << "seed " << seed;
    EXPECT_EQ(world.pages.free, pool) << "seed " << seed;
  }
}

}  // namespace
}  // namespace dsmoe::infer
