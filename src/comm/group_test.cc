#include "comm/group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/group_test_checks.h"
#include "comm/part.h"
#include "comm/self.h"
#include "comm/threads.h"

namespace dsmoe::comm {
namespace {

using std::chrono::milliseconds;

using testing::at;
using testing::parcel;

class Sizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Groups, Sizes, ::testing::Values(1, 2, 3, 4));

TEST_P(Sizes, EverythingArrives) {
  std::atomic<int> ran{0};
  run_ranks({.size = GetParam()}, [&](Group& group) {
    EXPECT_EQ(group.size(), GetParam());
    for (int turn = 0; turn < 20; ++turn) testing::check_everything(group);
    ++ran;
  });
  EXPECT_EQ(ran, GetParam());
}

TEST_P(Sizes, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> come{0};
  run_ranks({.size = GetParam()}, [&](Group& group) {
    for (int turn = 1; turn <= 50; ++turn) {
      ++come;
      group.barrier("turn");
      EXPECT_GE(come, turn * GetParam());
    }
  });
}

// Every second rank is in one part, the rest in the other.
TEST(Part, DoesEverythingAmongItsMembers) {
  for (const int size : {2, 3, 4}) {
    run_ranks({.size = size}, [&](Group& whole) {
      std::vector<int> members;
      for (int rank = whole.rank() % 2; rank < size; rank += 2) members.push_back(rank);
      Part part(whole, members);
      EXPECT_EQ(part.size(), static_cast<int>(members.size()));
      EXPECT_EQ(members[at(part.rank())], whole.rank());
      const std::vector<int> ranks = part.gather("ranks of the whole", whole.rank());
      EXPECT_EQ(ranks, members);
      // All parts call the same, but not with the same sizes.
      std::vector<std::vector<std::byte>> sent(members.size()), come(members.size());
      std::vector<Bytes> send;
      std::vector<Room> receive;
      for (std::size_t i = 0; i < members.size(); ++i) {
        sent[i] = parcel(whole.rank(), members[i], size);
        come[i].resize(parcel(members[i], whole.rank(), size).size());
        send.emplace_back(sent[i]);
        receive.emplace_back(come[i]);
      }
      part.exchange("parcels", send, receive);
      for (std::size_t i = 0; i < members.size(); ++i)
        EXPECT_EQ(come[i], parcel(members[i], whole.rank(), size));
    });
  }
}

TEST_P(Sizes, SumsFollowTheOrderGiven) {
  run_ranks({.size = GetParam()}, [&](Group& group) { testing::check_sums(group); });
}

// The numbers of check_sums can tell the two orders of three ranks: 2^25 + 1 is not a float.
TEST(OrderedSum, OrderMatters) {
  const float big = 1 << 25;
  EXPECT_NE((big + 1.0f) + -big, (-big + big) + 1.0f);
}

TEST(Self, DoesEverything) {
  Self self;
  testing::check_everything(self);
  self.barrier("alone");
}

TEST(Self, WhatLiesInItsPlaceIsNotTouched) {
  Self self;
  std::vector<std::byte> bytes = parcel(0, 1, 4);
  const Bytes send[] = {bytes};
  const Room receive[] = {bytes};
  self.exchange("views", send, receive);
  EXPECT_EQ(bytes, parcel(0, 1, 4));
}

std::string message_of(FunctionRef<void()> body) {
  try {
    body();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

// Runs `body` on each rank; the errors they saw, and what came out at the end.
struct Outcome {
  std::vector<std::string> seen;
  std::string thrown;
};
Outcome outcome(const ThreadRanks& ranks, FunctionRef<void(Group&)> body) {
  Outcome result{.seen = std::vector<std::string>(at(ranks.size)), .thrown = {}};
  result.thrown = message_of([&] {
    run_ranks(ranks, [&](Group& group) {
      try {
        body(group);
      } catch (const std::exception& e) {
        result.seen[at(group.rank())] = e.what();
        throw;
      }
    });
  });
  return result;
}

TEST(Failure, ARankThatThrowsWakesTheOthersByName) {
  for (int size : {2, 3, 4}) {
    const Outcome got = outcome({.size = size}, [](Group& group) {
      group.barrier("first");
      if (group.rank() == 1) throw std::runtime_error("the disk is full");
      group.barrier("second");
    });
    EXPECT_EQ(got.thrown, "the disk is full");
    for (int r = 0; r < size; ++r) {
      if (r != 1) {
        expect_parts(got.seen[at(r)], {"rank 1 failed: the disk is full", "\"second\"", "rank "});
      }
    }
  }
}

TEST(Failure, ADeadlineSaysWhoWaitedWhereAndForWhom) {
  const Outcome got = outcome({.size = 3, .deadline = milliseconds(50)}, [](Group& group) {
    group.barrier("first");
    if (group.rank() == 2) std::this_thread::sleep_for(milliseconds(400));
    group.barrier("second");
  });
  expect_parts(got.thrown,
               {"of 3 waited 0.05 s in \"second\" for rank 2", "was last in \"first\""});
  for (const std::string& text : got.seen) expect_parts(text, {"\"second\"", "rank 2"});
}

TEST(Failure, WaitingForOneThatHasEndedIsNoWait) {
  const Outcome got = outcome({.size = 2}, [](Group& group) {
    if (group.rank() == 0) group.barrier("alone");
  });
  expect_parts(got.thrown, {"rank 0 of 2", "\"alone\"", "rank 1, which has ended its work"});
}

TEST(Failure, DifferentCallsAreToldOnEveryRank) {
  const Outcome got = outcome(
      {.size = 3}, [](Group& group) { group.barrier(group.rank() == 1 ? "left" : "right"); });
  for (const std::string& text : got.seen)
    expect_parts(text, {"rank 1 is in \"left\", rank 0 in \"right\""});
}

TEST(Failure, SizesThatDifferAreToldOnEveryRank) {
  const Outcome got = outcome({.size = 3}, [](Group& group) {
    std::vector<std::byte> bytes(8);
    std::vector<Bytes> send(3);
    std::vector<Room> receive(3);
    if (group.rank() == 2) send[0] = bytes;
    if (group.rank() == 0) receive[2] = Room(bytes).first(4);
    group.exchange("rows", send, receive);
  });
  for (const std::string& text : got.seen)
    expect_parts(text, {"\"rows\"", "rank 2 sends 8 bytes to rank 0, which expects 4"});
  Self self;
  const std::vector<Bytes> send(1);
  std::byte byte{};
  const Room receive[] = {Room(&byte, 1)};
  expect_parts(message_of([&] { self.exchange("rows", send, receive); }),
               {"rank 0 sends 0 bytes to rank 0, which expects 1"});
}

TEST(Failure, ListsMustFitTheGroup) {
  Self self;
  expect_parts(message_of([&] { self.exchange("rows", {}, {}); }), {"rank 0 sends 0 parts"});
  expect_parts(message_of([&] { self.broadcast("rows", 1, {}); }), {"no rank 1"});
  const int twice[] = {0, 0};
  const OrderedSum<float> sum{.order = twice};
  expect_parts(message_of([&] { self.ordered_sum("rows", sum); }), {"an order of 2"});
}

}  // namespace
}  // namespace dsmoe::comm
