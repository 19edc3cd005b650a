// Every exchange is a meeting: all come, everyone takes what is for them, all leave.
#include "comm/threads.h"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/parcel.h"

namespace dsmoe::comm {
namespace {

// Where a rank is. Its lists stay as they are from the moment it has come until all are done.
struct Seat {
  uint64_t come = 0;  // how many exchanges it has entered
  uint64_t done = 0;  // and taken its parts of
  bool left = false;  // its work has ended
  std::string what;   // the newest
  std::span<const Bytes> send;
  std::span<const Room> receive;
};

class Meeting {
 public:
  explicit Meeting(const ThreadRanks& ranks)
      : deadline_(ranks.deadline), seats_(static_cast<std::size_t>(ranks.size)) {}

  void exchange(int rank, std::string_view what, std::span<const Bytes> send,
                std::span<const Room> receive) {
    Seat& own = seat(rank);
    std::unique_lock lock(mutex_);
    throw_failure(rank, what);
    ++own.come;
    own.what = what;
    own.send = send;
    own.receive = receive;
    // Whoever comes last looks at all lists: nobody copies, and nobody leaves, before.
    if (describe_missing(own.come).empty()) contradiction_ = find_contradiction();
    changed_.notify_all();
    wait_for_all(lock, rank);
    if (!contradiction_.empty()) throw Error(ErrorKind::internal, contradiction_);
    lock.unlock();
    for (std::size_t r = 0; r < seats_.size(); ++r)
      copy_parcel(seats_[r].send[static_cast<std::size_t>(rank)], receive[r]);
    lock.lock();
    ++own.done;
    changed_.notify_all();
    // Only copying is left to the others, out of what this rank sends: it may not go before.
    changed_.wait(lock, [&] {
      for (const Seat& other : seats_)
        if (other.done < own.come) return false;
      return true;
    });
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    seat(rank).left = true;
    changed_.notify_all();
  }

  // The first failure counts: the others follow from it.
  void fail_with(int rank, std::exception_ptr error, std::string_view message) {
    const std::lock_guard lock(mutex_);
    if (!first_error_) first_error_ = std::move(error);
    note(fmt::format("rank {} failed: {}", rank, message));
  }

  std::exception_ptr first_error() const { return first_error_; }

 private:
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }

  void note(std::string failure) {
    if (failure_.empty()) failure_ = std::move(failure);
    changed_.notify_all();
  }

  void throw_failure(int rank, std::string_view what) const {
    if (!failure_.empty()) fail(ErrorKind::io, "rank {} stops in \"{}\": {}", rank, what, failure_);
  }

  // Nobody copies before all have come, and who comes after a failure throws: so either all go on
  // or none.
  void wait_for_all(std::unique_lock<std::mutex>& lock, int rank) {
    const Seat& own = seat(rank);
    const auto is_over = [&] {
      bool all = true;
      for (const Seat& other : seats_) {
        if (other.come >= own.come) continue;
        if (other.left) return true;
        all = false;
      }
      return all || !failure_.empty();
    };
    changed_.wait_for(lock, deadline_, is_over);
    const std::string missing = describe_missing(own.come);
    if (missing.empty()) return;
    throw_failure(rank, own.what);
    const double seconds = std::chrono::duration<double>(deadline_).count();
    const std::string message = is_over()
                                    ? fmt::format("rank {} of {} waits in \"{}\" for {}", rank,
                                                  seats_.size(), own.what, missing)
                                    : fmt::format("rank {} of {} waited {} s in \"{}\" for {}",
                                                  rank, seats_.size(), seconds, own.what, missing);
    note(message);
    throw Error(ErrorKind::io, message);
  }

  // The ranks that have not come, and where they are; empty: all have come.
  std::string describe_missing(uint64_t come) const {
    std::string text;
    for (std::size_t r = 0; r < seats_.size(); ++r) {
      const Seat& other = seats_[r];
      if (other.come >= come) continue;
      const std::string last =
          other.what.empty() ? "has not come yet" : fmt::format("was last in \"{}\"", other.what);
      text += fmt::format("{}rank {}, which {}", text.empty() ? "" : "; ", r,
                          other.left ? "has ended its work" : last);
    }
    return text;
  }

  std::string find_contradiction() const {
    for (std::size_t from = 0; from < seats_.size(); ++from) {
      const Seat& sender = seats_[from];
      if (sender.what != seats_[0].what) {
        return fmt::format("rank {} is in \"{}\", rank 0 in \"{}\": they must call the same", from,
                           sender.what, seats_[0].what);
      }
      for (std::size_t to = 0; to < seats_.size(); ++to) {
        const std::string fault = fault_of({.from = static_cast<int>(from),
                                            .to = static_cast<int>(to),
                                            .sent = sender.send[to].size(),
                                            .expected = seats_[to].receive[from].size()});
        if (!fault.empty()) return fmt::format("\"{}\": {}", sender.what, fault);
      }
    }
    return {};
  }

  std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seat> seats_;
  std::string failure_;        // of a rank; nobody comes any more
  std::string contradiction_;  // of the lists of this exchange
  std::exception_ptr first_error_;
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(Meeting& meeting, int rank, int size) : Group(rank, size), meeting_(meeting) {}

 private:
  void move(std::string_view what, std::span<const Bytes> send,
            std::span<const Room> receive) override {
    meeting_.exchange(rank(), what, send, receive);
  }

  Meeting& meeting_;
};

void run_rank(Meeting& meeting, int rank, int size, FunctionRef<void(Group&)> body) {
  ThreadGroup group(meeting, rank, size);
  try {
    body(group);
  } catch (const std::exception& e) {
    meeting.fail_with(rank, std::current_exception(), e.what());
  } catch (...) {
    meeting.fail_with(rank, std::current_exception(), "with something that is no exception");
  }
  meeting.leave(rank);
}

}  // namespace

void run_ranks(const ThreadRanks& ranks, FunctionRef<void(Group&)> body) {
  DSMOE_CHECK(ranks.size > 0, "{} ranks", ranks.size);
  Meeting meeting(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 1; rank < ranks.size; ++rank)
      threads.emplace_back([&, rank] { run_rank(meeting, rank, ranks.size, body); });
    run_rank(meeting, 0, ranks.size, body);
  }
  if (meeting.first_error()) std::rethrow_exception(meeting.first_error());
}

}  // namespace dsmoe::comm
