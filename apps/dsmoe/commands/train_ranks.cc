// Ranks of dsmoe train: how many, what they run on, how they are started.
#include "commands/train_ranks.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "comm/mpi/mpi_ranks.h"
#include "comm/threads.h"
#include "store/checkpoint.h"

namespace dsmoe::app {
namespace {

// Somebody may read data or write a checkpoint for long. Of processes, a rank that is dead or
// frozen is found much sooner (comm/watch.h).
constexpr std::chrono::hours kDeadline{24};

// What launchers call the number of processes: Open MPI, PMI (MPICH, Intel), Slurm's srun.
constexpr const char* kSizeNames[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

}  // namespace

int64_t launched_processes(const TrainOptions& options) {
  for (const char* name : kSizeNames) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    int64_t size = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, size);
    if (error != std::errc() || stop != end || size < 1) {
      fail(ErrorKind::usage, "{}={}: expected a number of processes", name, in_quotes(text));
    }
    if (options.ranks > 1 && options.ranks != size) {
      fail(ErrorKind::usage, "--ranks {}, but {}={}: leave one out, or make them equal",
           options.ranks, name, size);
    }
    return size;
  }
  return 1;
}

void fill_ranks(TrainOptions& options) {
  train::RunOptions& run = options.run;
  if (options.ranks > 1 && options.common.device != "cpu") {
    fail(ErrorKind::usage, "--ranks {} with --device {}: ranks compute on CPUs yet", options.ranks,
         options.common.device);
  }
  if (run.expert_ranks > 1 && !options.eval_pairs.empty()) {
    fail(ErrorKind::usage,
         "--eval-pairs needs all experts in one place; leave out --expert-parallel, or measure "
         "checkpoints with dsmoe eval");
  }
  const bool goes_on = run.resume && store::has_checkpoints(run.out);
  const auto fill = [&](int64_t& shards, int64_t usual) {
    if (shards == 0) shards = goes_on ? 1 : usual;
  };
  fill(run.shards, options.ranks);
  fill(run.expert_shards, options.ranks / run.expert_ranks);
  train::layout_of(run, 0, options.ranks);
}

void become_mpirun(const TrainOptions& options, const std::vector<std::string>& words) {
  if (options.transport != "mpi" || options.ranks == 1) return;
  if (const std::string why = comm::mpi_declined(); !why.empty())
    fail(ErrorKind::usage, "--transport mpi: {}", why);
  std::vector<std::string> all{"mpirun",          "-n",        std::to_string(options.ranks),
                               "--oversubscribe", "--bind-to", "none"};
  if (::geteuid() == 0) all.emplace_back("--allow-run-as-root");
  all.emplace_back("/proc/self/exe");
  std::vector<char> self(4096);
  const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size());
  if (length > 0 && length < static_cast<ssize_t>(self.size()))
    all.back().assign(self.data(), static_cast<std::size_t>(length));
  all.insert(all.end(), words.begin() + 1, words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp("mpirun", arguments.data());
  fail_errno("cannot start mpirun (Debian: openmpi-bin)");
}

void run_as_process(FunctionRef<void(comm::Group& group)> body) {
  comm::run_mpi_rank({.deadline = kDeadline}, body);
}

void run_as_threads(const TrainOptions& options, const kernels::Context& context, int num_threads,
                    FunctionRef<void(comm::Group& group, const kernels::Context& context)> body) {
  const auto ranks = static_cast<int>(options.ranks);
  const int own_threads = std::max(1, num_threads / ranks);
  log_info("{} ranks, {} of which share the experts of a replica; {} thread{} each", ranks,
           options.run.expert_ranks, own_threads, own_threads == 1 ? "" : "s");
  comm::run_ranks({.size = ranks, .deadline = kDeadline}, [&](comm::Group& group) {
    ThreadPool pool(own_threads);
    body(group, {.table = context.table, .pool = &pool});
  });
}

}  // namespace dsmoe::app
