// Flags that several commands share, and the engine they describe.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "commands/command_line.h"
#include "infer/load_model.h"

namespace dsmoe::app {

struct CommonOptions {
  std::string model;  // a folder
  int threads = 0;    // 0: one per physical core
  std::string dtype;  // empty: what config.json names
  int64_t context = 0;
  std::string device = "cpu";
  bool cache = false;
  bool json = false;
  bool quiet = false;
};

inline constexpr std::string_view kModelFolder =
    "model folder (config.json, *.safetensors) or training run";

// For Flag::replace: the model that `path` means (commands/model_choice.h).
Replaced chosen_model(const std::string& path, std::string_view expected = kModelFolder);
Replaced chosen_holder(const std::string& path, std::string_view name);
void add_model_argument(CommandLine& command, CommonOptions& options,
                        std::string_view help = kModelFolder);
void add_output_flags(CommandLine& command, CommonOptions& options);   // --json --quiet
void add_machine_flags(CommandLine& command, CommonOptions& options);  // --threads --device
void add_dtype_flag(CommandLine& command, CommonOptions& options);     // --dtype
void add_run_flags(CommandLine& command, CommonOptions& options);  // all three, --context --cache

// The threads and kernels a command runs on. Refuses a device this program was not built for.
class Engine {
 public:
  explicit Engine(const CommonOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const kernels::Context& context() const { return context_; }
  ThreadPool& pool() { return pool_; }
  int num_threads() const { return pool_.num_threads(); }
  std::unique_ptr<model::Model> load(const CommonOptions& options) const;

 private:
  ThreadPool pool_;
  kernels::Context context_;
};

}  // namespace dsmoe::app
