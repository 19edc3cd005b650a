// Point to point only: a note to every rank, which says what comes, then the bytes. So both sides
// know a contradiction before data moves, and every wait can name whom it waits for.
#include "comm/mpi/mpi_ranks.h"

#include <fmt/format.h>

// The C functions alone: the C++ classes of some MPI libraries need another library.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "base/error.h"
#include "comm/parcel.h"

namespace dsmoe::comm {
namespace {

using Clock = std::chrono::steady_clock;

enum Tag : int { kNote, kData, kFailure };

template <std::size_t kSize>
void put_text(char (&target)[kSize], std::string_view text) {
  const std::size_t count = std::min(text.size(), kSize - 1);
  std::memcpy(target, text.data(), count);
  target[count] = 0;
}

// What a rank tells another before its bytes.
struct Note {
  uint64_t operation = 0;  // how many exchanges it has entered
  uint64_t bytes = 0;
  char what[48] = {};
};

// Why a rank ends.
struct Failure {
  char message[512] = {};
};

void check(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail(ErrorKind::io, "MPI: {}: {}", what,
       std::string_view(text, static_cast<std::size_t>(length)));
}

int rank_in(MPI_Comm communicator) {
  int rank = 0;
  check(MPI_Comm_rank(communicator, &rank), "rank");
  return rank;
}
int size_of(MPI_Comm communicator) {
  int size = 0;
  check(MPI_Comm_size(communicator, &size), "number of ranks");
  return size;
}

class MpiGroup final : public Group {
 public:
  MpiGroup(MPI_Comm communicator, std::chrono::milliseconds deadline)
      : Group(rank_in(communicator), size_of(communicator)),
        communicator_(communicator),
        deadline_(deadline),
        notes_out_(static_cast<std::size_t>(size())),
        notes_in_(static_cast<std::size_t>(size())) {
    check(MPI_Irecv(&failure_, sizeof failure_, MPI_BYTE, MPI_ANY_SOURCE, kFailure, communicator_,
                    &failed_),
          "listening for failures");
  }

  // From now on waits end when a rank does not live any more. `watch` must outlive the group's use.
  void be_watched(Watch* watch) { watch_ = watch; }

  // To every rank that does not know yet; who does not listen any more is not waited for.
  void tell_failure(std::string_view message) {
    if (was_told_) return;
    Failure failure;
    put_text(failure.message, fmt::format("rank {} failed: {}", rank(), message));
    std::vector<MPI_Request> sends;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      MPI_Isend(&failure, sizeof failure, MPI_BYTE, peer, kFailure, communicator_,
                &sends.emplace_back());
    }
    int done = 0;
    const auto end = Clock::now() + std::chrono::seconds(2);
    while (done == 0 && Clock::now() < end) {
      MPI_Testall(static_cast<int>(sends.size()), sends.data(), &done, MPI_STATUSES_IGNORE);
      std::this_thread::yield();
    }
  }

  void end() {
    check(MPI_Cancel(&failed_), "end");
    check(MPI_Wait(&failed_, MPI_STATUS_IGNORE), "end");
  }

 private:
  // What is under way, and with whom.
  struct Pending {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;

    MPI_Request* add(int peer) {
      peers.push_back(peer);
      return &requests.emplace_back(MPI_REQUEST_NULL);
    }
  };

  void move(std::string_view what, std::span<const Bytes> send,
            std::span<const Room> receive) override {
    ++operation_;
    if (watch_ != nullptr) watch_->doing(what);
    exchange_notes(what, send);
    for (int peer = 0; peer < size(); ++peer) check_note(what, peer, receive[at(peer)].size());
    copy_parcel(send[at(rank())], receive[at(rank())]);
    Pending pending;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      for_each_piece(receive[at(peer)], [&](Room piece) {
        check(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, peer, kData,
                        communicator_, pending.add(peer)),
              "receive");
      });
      for_each_piece(send[at(peer)], [&](Bytes piece) {
        check(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, peer, kData,
                        communicator_, pending.add(peer)),
              "send");
      });
    }
    wait(pending, what);
  }

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  // MPI counts in int.
  template <class Piece, class Body>
  static void for_each_piece(Piece bytes, Body&& body) {
    constexpr std::size_t kMost = std::size_t{1} << 30;
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(kMost, bytes.size())))
      body(bytes.first(std::min(kMost, bytes.size())));
  }

  void exchange_notes(std::string_view what, std::span<const Bytes> send) {
    Pending pending;
    for (int peer = 0; peer < size(); ++peer) {
      Note& note = notes_out_[at(peer)];
      note = {.operation = operation_, .bytes = send[at(peer)].size()};
      put_text(note.what, what);
      if (peer == rank()) {
        notes_in_[at(peer)] = note;
        continue;
      }
      check(MPI_Irecv(&notes_in_[at(peer)], sizeof note, MPI_BYTE, peer, kNote, communicator_,
                      pending.add(peer)),
            "receive a note");
      check(MPI_Isend(&note, sizeof note, MPI_BYTE, peer, kNote, communicator_, pending.add(peer)),
            "send a note");
    }
    wait(pending, what);
  }

  void check_note(std::string_view what, int peer, std::size_t expected) const {
    const Note& note = notes_in_[at(peer)];
    const Note& own = notes_out_[at(rank())];
    if (std::strcmp(note.what, own.what) != 0 || note.operation != own.operation) {
      fail(ErrorKind::internal, "rank {} is in \"{}\", rank {} in \"{}\": they must call the same",
           peer, note.what, rank(), what);
    }
    const std::string fault =
        fault_of({.from = peer, .to = rank(), .sent = note.bytes, .expected = expected});
    if (!fault.empty()) fail(ErrorKind::internal, "\"{}\": {}", what, fault);
  }

  // Looks at first without pause: most waits are short. Then others may have the CPU.
  void wait(Pending& pending, std::string_view what) {
    const auto begin = Clock::now();
    for (int64_t looks = 0;; ++looks) {
      int done = 0;
      check(MPI_Testall(static_cast<int>(pending.requests.size()), pending.requests.data(), &done,
                        MPI_STATUSES_IGNORE),
            "waiting");
      if (done != 0) return;
      throw_failure(what);
      if (watch_ != nullptr && watch_->has_failure()) {
        was_told_ = true;
        fail(ErrorKind::io, "rank {} stops in \"{}\": {}", rank(), what, watch_->failure());
      }
      if (Clock::now() - begin > deadline_) throw_late(pending, what);
      if (looks > 20'000) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      } else if (looks > 200) {
        std::this_thread::yield();
      }
    }
  }

  void throw_failure(std::string_view what) {
    int told = 0;
    check(MPI_Test(&failed_, &told, MPI_STATUS_IGNORE), "listening for failures");
    if (told == 0) return;
    was_told_ = true;
    fail(ErrorKind::io, "rank {} stops in \"{}\": {}", rank(), what, failure_.message);
  }

  // The others are told before anything is unwound: MPI may still put what comes late into the
  // memory of this exchange, as long as it is called.
  void throw_late(Pending& pending, std::string_view what) {
    std::string missing;
    for (std::size_t i = 0; i < pending.requests.size(); ++i) {
      int done = 0;
      MPI_Test(&pending.requests[i], &done, MPI_STATUS_IGNORE);
      const std::string name = fmt::format("rank {}", pending.peers[i]);
      if (done == 0 && missing.find(name) == std::string::npos)
        missing += (missing.empty() ? "" : ", ") + name;
    }
    const std::string message =
        fmt::format("rank {} of {} waited {} s in \"{}\" for {}", rank(), size(),
                    std::chrono::duration<double>(deadline_).count(), what, missing);
    tell_failure(message);
    was_told_ = true;
    throw Error(ErrorKind::io, message);
  }

  MPI_Comm communicator_;
  std::chrono::milliseconds deadline_;
  uint64_t operation_ = 0;
  std::vector<Note> notes_out_, notes_in_;  // by rank
  Failure failure_;
  MPI_Request failed_ = MPI_REQUEST_NULL;
  bool was_told_ = false;
  Watch* watch_ = nullptr;
};

}  // namespace

std::string mpi_declined() { return {}; }

void run_mpi_rank(const MpiRanks& ranks, FunctionRef<void(Group&)> body) {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "start");
  MPI_Comm communicator = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator), "communicator");
  check(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "error handler");
  MpiGroup group(communicator, ranks.deadline);
  std::optional<Watch> watch;
  try {
    if (group.size() > 1) {
      watch.emplace(group, ranks.watch);
      group.be_watched(&*watch);
    }
    body(group);
    group.barrier("the end");
    group.be_watched(nullptr);
    watch.reset();
  } catch (const std::exception& e) {
    if (watch) watch->fail(e.what());
    group.tell_failure(e.what());
    throw;
  }
  group.end();
  check(MPI_Comm_free(&communicator), "end");
  check(MPI_Finalize(), "end");
}

}  // namespace dsmoe::comm
