// Turns, pages and cancellation of the scheduler, without a model.
#include "infer/engine/scheduler.h"

#include "infer/engine/scheduler_world.h"

namespace dsmoe::infer {
namespace {

// --- Turns

TEST(SchedulerTurns, ASequenceAloneRunsAtOnce) {
  World world;
  const uint64_t id = world.add({.prompt = 200, .answer = 1});
  EXPECT_EQ(world.step(), (Computed{{id, 200}}));
  EXPECT_TRUE(world.is_idle());
  EXPECT_EQ(world.pages.free, 1000);
}

TEST(SchedulerTurns, NothingToDoIsNoPart) {
  World world;
  EXPECT_TRUE(world.step().empty());
}

TEST(SchedulerTurns, NoMoreRunThanTheBatchHolds) {
  World world({.max_batch = 3});
  for (int i = 0; i < 5; ++i) world.add({});
  world.step();
  EXPECT_EQ(world.ids_running(), (Ids{1, 2, 3}));
  EXPECT_EQ(world.scheduler.waiting().size(), 2u);
}

TEST(SchedulerTurns, EqualOnesRunInTheOrderOfArrival) {
  World world(one_at_a_time());
  for (int i = 0; i < 4; ++i) world.add({.answer = 2, .submission = 7});
  world.step_until([&] { return world.is_idle(); });
  EXPECT_EQ(world.ended, (Ids{1, 2, 3, 4}));
}

TEST(SchedulerTurns, OwnersShareTheBatch) {
  World world({.max_batch = 4});
  for (int i = 0; i < 6; ++i) world.add({.owner = 1});
  for (int i = 0; i < 2; ++i) world.add({.owner = 2});
  world.step();
  EXPECT_EQ(world.ids_running(), (Ids{1, 7, 2, 8}));
}

TEST(SchedulerTurns, TheOwnerWithFewestRunningGoesNext) {
  World world({.max_batch = 3});
  world.add({.owner = 1});
  world.add({.owner = 1});
  world.add({.answer = 1, .owner = 2});
  world.step();  // 3 has ended
  world.add({.owner = 1});
  const uint64_t of_two = world.add({.owner = 2});
  world.step();
  EXPECT_EQ(world.ids_running().back(), of_two);
}

TEST(SchedulerTurns, OwnersTakeTurnsWhereOneRunsAtATime) {
  World world(one_at_a_time());
  for (uint64_t owner = 1; owner <= 3; ++owner) {
    for (int i = 0; i < 2; ++i) world.add({.answer = 1, .owner = owner});
  }
  world.step_until([&] { return world.is_idle(); });
  EXPECT_EQ(world.ended, (Ids{1, 3, 5, 2, 4, 6}));
}

TEST(SchedulerTurns, SubmissionsOfAnOwnerTakeTurns) {
  World world(one_at_a_time());
  for (int i = 0; i < 3; ++i) world.add({.answer = 1, .submission = 1});
  for (int i = 0; i < 2; ++i) world.add({.answer = 1, .submission = 2});
  world.step_until([&] { return world.is_idle(); });
  EXPECT_EQ(world.ended, (Ids{1, 4, 2, 5, 3}));
}

TEST(SchedulerTurns, ALargeSubmissionDoesNotHoldUpALaterOneOfItsOwner) {
  World world({.max_batch = 2});
  for (int i = 0; i < 10; ++i) world.add({.answer = 5, .submission = 1});
  world.step();
  const uint64_t late = world.add({.answer = 5, .submission = 2});
  EXPECT_LE(world.steps_until_end(late), 5 + 5);
}

TEST(SchedulerTurns, WhoKeepsSubmittingDoesNotStarveAnother) {
  World world(one_at_a_time());
  world.add({.answer = 3, .owner = 1});
  const uint64_t other = world.add({.answer = 3, .owner = 2});
  int steps = 0;
  for (; !world.has_ended(other) && steps < 100; ++steps) {
    world.add({.answer = 3, .owner = 1});
    world.step();
  }
  EXPECT_EQ(steps, 6);
}

TEST(SchedulerTurns, EveryNewOwnerWaitsForTheTurnsBeforeIt) {
  World world(one_at_a_time());
  const uint64_t first = world.add({.answer = 2, .owner = 1});
  const uint64_t second = world.add({.answer = 2, .owner = 1});
  int steps = 0;
  for (uint64_t owner = 2; !world.has_ended(second) && steps < 100; ++owner, ++steps) {
    world.add({.answer = 2, .owner = owner});
    world.step();
  }
  EXPECT_TRUE(world.has_ended(first));
  EXPECT_LE(steps, 8) << "owners that come later must not all go first";
}

// --- Pages

TEST(SchedulerPages, WhoWasAdmittedLastMakesRoomAndComesBackFirst) {
  World world({.page_tokens = 4}, 4);
  const uint64_t first = world.add({.prompt = 4, .answer = 12});
  const uint64_t second = world.add({.prompt = 4, .answer = 9});
  const uint64_t third = world.add({.prompt = 1, .answer = 1});
  world.step();
  EXPECT_EQ(world.ids_running(), (Ids{first, second}));
  world.step_until([&] { return !world.pages.given_up.empty(); });
  EXPECT_EQ(world.pages.given_up, Ids{second});
  EXPECT_EQ(world.scheduler.waiting().front()->id, second);
  EXPECT_EQ(world.scheduler.num_preemptions(), 1);
  world.step_until([&] { return world.is_idle(); });
  EXPECT_EQ(world.pages.begun, (Ids{first, second, second, third}));
  EXPECT_EQ(world.pages.free, 4);
}

TEST(SchedulerPages, APreemptedOneStartsFromItsFirstToken) {
  World world({.page_tokens = 4}, 5);
  world.add({.prompt = 4, .answer = 15});
  const uint64_t second = world.add({.prompt = 4, .answer = 12});
  world.step_until([&] { return !world.pages.given_up.empty(); });
  const Scheduled* preempted = world.scheduler.find(second);
  EXPECT_TRUE(preempted->was_preempted);
  EXPECT_EQ(preempted->num_forwarded, 0);
  const int64_t known = preempted->num_tokens;
  EXPECT_GT(known, 4);
  Computed computed;
  for (int steps = 0; !computed.contains(second) && steps < 100; ++steps) computed = world.step();
  EXPECT_EQ(computed.at(second), known) << "prompt and answer so far, in one go";
}

TEST(SchedulerPages, APreemptedOneGoesBeforeNewcomersOfIdleOwners) {
  World world({.page_tokens = 4}, 5);
  world.add({.prompt = 4, .answer = 15, .owner = 1});
  const uint64_t second = world.add({.prompt = 4, .answer = 12, .owner = 1});
  world.step_until([&] { return !world.pages.given_up.empty(); });
  const uint64_t newcomer = world.add({.prompt = 1, .answer = 1, .owner = 2});
  world.step_until([&] { return world.is_idle(); });
  EXPECT_EQ(world.pages.begun, (Ids{1, second, second, newcomer}));
}

TEST(SchedulerPages, CachedBeginningsGoBeforeAnySequenceDoes) {
  World world({.page_tokens = 4}, 2);
  world.pages.evictable = 4;
  const uint64_t first = world.add({.prompt = 4, .answer = 9});
  const uint64_t second = world.add({.prompt = 4, .answer = 9});
  world.step_until([&] { return world.is_idle(); });
  EXPECT_EQ(world.scheduler.num_preemptions(), 0);
  EXPECT_EQ(world.pages.num_evicted, 4);
  EXPECT_EQ(world.ended, (Ids{first, second}));
}

TEST(SchedulerPages, ACachedBeginningIsNotComputedAgain) {
  World world({.page_tokens = 4});
  world.pages.evictable = 2;
  world.pages.cached_of[1] = 2;
  const uint64_t id = world.add({.prompt = 11, .answer = 1});
  EXPECT_EQ(world.step(), (Computed{{id, 3}}));
  EXPECT_EQ(world.pages.evictable, 2);
}

TEST(SchedulerPages, NobodyIsAdmittedForWhomNoPagesWouldBeLeft) {
  World world({.page_tokens = 4}, 6);
  world.add({.prompt = 16, .answer = 4});  // needs five pages for what is known of it and a token
  const uint64_t second = world.add({.prompt = 8, .answer = 4});
  world.step();
  EXPECT_EQ(world.ids_running(), Ids{1});
  world.end(1);
  world.step();
  EXPECT_EQ(world.ids_running(), Ids{second});
}

TEST(SchedulerPages, EvictablePagesAreRoomForAnother) {
  World world({.page_tokens = 4}, 6);
  world.pages.evictable = 3;
  world.add({.prompt = 16, .answer = 4});
  world.add({.prompt = 8, .answer = 4});
  world.step();
  EXPECT_EQ(world.ids_running(), (Ids{1, 2}));
}

TEST(SchedulerPages, WhatDoesNotFitIsNotOvertaken) {
  World world({.page_tokens = 4}, 6);
  world.add({.prompt = 16, .answer = 4, .owner = 1});
  world.add({.prompt = 12, .answer = 2, .owner = 2});
  world.add({.prompt = 1, .answer = 1, .owner = 3});  // would fit
  world.step();
  EXPECT_EQ(world.ids_running(), Ids{1});
}

TEST(SchedulerPages, OneAloneIsAdmittedWhateverIsFree) {
  World world({.page_tokens = 4}, 3);
  const uint64_t id = world.add({.prompt = 12, .answer = 1});  // three pages, and none for a token
  EXPECT_EQ(world.steps_until_end(id), 1);
}

TEST(SchedulerPages, APoolOfOneContextBringsEveryoneToTheEnd) {
  World world({.max_batch = 8, .page_tokens = 4}, 5);  // 20 tokens
  for (int i = 0; i < 8; ++i) world.add({.prompt = 3 + i, .answer = 10});
  for (int steps = 0; !world.is_idle() && steps < 1000; ++steps) world.step();
  EXPECT_TRUE(world.is_idle());
  EXPECT_EQ(world.ended.size(), 8u);
  EXPECT_EQ(world.pages.free, 5);
}

// --- Cancellation

TEST(SchedulerCancel, OneThatWaitsIsGone) {
  World world(one_at_a_time());
  world.add({.answer = 2});
  const uint64_t second = world.add({.answer = 2});
  const uint64_t third = world.add({.answer = 2});
  world.step();
  world.end(second);
  world.step_until([&] { return world.is_idle(); });
  EXPECT_EQ(world.ended, (Ids{second, 1, third}));
}

TEST(SchedulerCancel, OneThatRunsMakesRoomForTheNext) {
  World world(one_at_a_time());
  world.add({});
  const uint64_t second = world.add({.answer = 1});
  world.step();
  world.end(1);
  EXPECT_EQ(world.step(), (Computed{{second, 1}}));
}

TEST(SchedulerCancel, WhoIsGoneIsNotFoundAndCannotBeRemovedTwice) {
  World world;
  const uint64_t id = world.add({});
  const Scheduled* sequence = world.scheduler.find(id);
  ASSERT_NE(sequence, nullptr);
  const std::unique_ptr<Scheduled> removed = world.scheduler.remove(*sequence);
  EXPECT_EQ(removed.get(), sequence);
  EXPECT_EQ(world.scheduler.find(id), nullptr);
  EXPECT_EQ(world.scheduler.remove(*removed), nullptr);
  EXPECT_FALSE(world.scheduler.is_running(*removed));
}

TEST(SchedulerCancel, WhoEndsAsItBeginsIsInNoPart) {
  World world({.max_batch = 2});
  world.add({});
  const uint64_t broken = world.add({});
  const uint64_t third = world.add({});
  world.pages.on_begin = [&](Scheduled& sequence) {
    if (sequence.id == broken) world.end(broken);
  };
  EXPECT_EQ(world.step(), (Computed{{1, 1}, {third, 1}}));
}

}  // namespace
}  // namespace dsmoe::infer
