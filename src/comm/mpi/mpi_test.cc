// Run by mpirun: every operation, or one of the ways in which ranks fail.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "comm/group_test_checks.h"
#include "comm/mpi/mpi_ranks.h"

namespace dsmoe::comm {
namespace {

using std::chrono::milliseconds;

Group* group = nullptr;

TEST(Mpi, EverythingArrives) {
  for (int turn = 0; turn < 20; ++turn) testing::check_everything(*group);
}

TEST(Mpi, SumsFollowTheOrderGiven) { testing::check_sums(*group); }

TEST(Mpi, LargePartsArrive) {
  const int size = group->size();
  std::vector<std::vector<int>> sent(testing::at(size)), come(testing::at(size));
  std::vector<Bytes> send;
  std::vector<Room> receive;
  for (int r = 0; r < size; ++r) {
    sent[testing::at(r)].assign(1 << 20, group->rank() * 100 + r);
    come[testing::at(r)].resize(1 << 20);
    send.push_back(std::as_bytes(std::span(sent[testing::at(r)])));
    receive.push_back(std::as_writable_bytes(std::span(come[testing::at(r)])));
  }
  group->exchange("large parts", send, receive);
  for (int r = 0; r < size; ++r)
    EXPECT_EQ(come[testing::at(r)], std::vector<int>(1 << 20, r * 100 + group->rank()));
}

// Rank 1 fails in its own way; what the others see is printed.
void fail_as(const std::string& way, Group& own) {
  own.barrier("first");
  if (own.rank() == 1) {
    if (way == "killed" || way == "frozen")  // a sign of life tells what it is in
      std::this_thread::sleep_for(milliseconds(400));
    if (way == "killed") std::raise(SIGKILL);
    if (way == "frozen") std::raise(SIGSTOP);
    if (way == "throws") throw std::runtime_error("the disk is full");
    if (way == "late") std::this_thread::sleep_for(std::chrono::seconds(3));
    if (way == "elsewhere") own.barrier("elsewhere");
    std::vector<Bytes> send(testing::at(own.size()));
    const std::vector<Room> receive(testing::at(own.size()));
    const std::byte bytes[8] = {};
    if (way == "size") send[0] = bytes;
    own.exchange("second", send, receive);
  }
  own.barrier("second");
}

int run(const std::string& way) {
  int result = 0;
  const bool fails = way != "all";
  // Of a rank that lives no more the watch tells, long before anybody has waited long enough.
  const bool is_watched = way == "killed" || way == "frozen";
  if (is_watched) std::signal(SIGTERM, SIG_IGN);  // mpirun's, before the others could speak
  try {
    run_mpi_rank({.deadline = milliseconds(fails && !is_watched ? 500 : 60'000),
                  .watch = {.beat = milliseconds(100),
                            .silence = milliseconds(is_watched ? 1'500 : 12'000)}},
                 [&](Group& own) {
                   group = &own;
                   if (fails) return fail_as(way, own);
                   result = RUN_ALL_TESTS();
                 });
  } catch (const std::exception& e) {
    std::printf("a rank saw: %s\n", e.what());
    return 1;
  }
  return result;
}

}  // namespace
}  // namespace dsmoe::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int result = dsmoe::comm::run(argc > 1 ? argv[1] : "all");
  std::fflush(stdout);
  // After a failure MPI is not ended: nothing of it may run at exit.
  std::_Exit(result);
}
