// Shared flags -> a pool, a kernel table, a model.
#include "commands/options.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "commands/model_choice.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/table.h"

namespace dsmoe::app {
namespace {

constexpr int64_t kMaxThreads = 1024;

kernels::Context context_of(const CommonOptions& options, ThreadPool& pool) {
  if (options.device == "cuda") {
    return {.table = &kernels::cuda_table(),
            .pool = &pool,
            .stream = kernels::make_cuda_stream(kernels::KernelsThatWait::allowed)};
  }
  return {.table = &kernels::select_cpu_table(), .pool = &pool};
}

Replaced replaced_by(const ModelChoice& choice) {
  if (choice.why.empty()) return {.value = choice.folder, .note = ""};
  return {.value = choice.folder, .note = fmt::format("{}: {}", choice.folder, choice.why)};
}

}  // namespace

Replaced chosen_model(const std::string& path, std::string_view expected) {
  return replaced_by(choose_model(path, expected));
}

Replaced chosen_holder(const std::string& path, std::string_view name) {
  return replaced_by(choose_holder(path, name));
}

void add_model_argument(CommandLine& command, CommonOptions& options, std::string_view help) {
  command.option("model", options.model, std::string(help))
      .required()
      .replace([help](const std::string& path) { return chosen_model(path, help); })
      .type("MODEL");
}

void add_output_flags(CommandLine& command, CommonOptions& options) {
  command.flag("--json", options.json, "print JSON");
  command.flag("-q,--quiet", options.quiet, "no messages on stderr but errors");
}

void add_machine_flags(CommandLine& command, CommonOptions& options) {
  command.option("--threads", options.threads, "threads; default: physical cores")
      .range(int64_t{1}, kMaxThreads)
      .type("N");
  command.option("--device", options.device, "cpu or cuda; default: cpu")
      .one_of({"cpu", "cuda"})
      .type("DEVICE");
}

void add_dtype_flag(CommandLine& command, CommonOptions& options) {
  command.option("--dtype", options.dtype, "compute in bf16 or fp32; default: the config's")
      .one_of({"bf16", "fp32"})
      .type("TYPE");
}

void add_run_flags(CommandLine& command, CommonOptions& options) {
  add_machine_flags(command, options);
  add_dtype_flag(command, options);
  command
      .option("--context", options.context,
              "positions of one sequence; default: max_position_embeddings")
      .range(int64_t{1}, int64_t{1} << 24)
      .type("N");
  command.flag("--cache", options.cache,
               "keep the packed weights in the model folder, and use what is kept there");
}

Engine::Engine(const CommonOptions& options)
    : pool_(options.threads), context_(context_of(options, pool_)) {}

Engine::~Engine() {
  if (context_.stream != nullptr) kernels::release_cuda_stream(context_.stream);
}

std::unique_ptr<model::Model> Engine::load(const CommonOptions& options) const {
  infer::LoadOptions load{.context = options.context};
  if (options.cache) load.cache = infer::PackedCache::beside_model;
  if (options.dtype == "bf16") load.operand = tensor::DType::BF16;
  if (options.dtype == "fp32") load.operand = tensor::DType::F32;
  auto model = infer::load_model(context_, options.model, load);
  log_debug("{}: {} on {} with {} threads", options.model, tensor::name_of(model->operand),
            context_.table->name, pool_.num_threads());
  return model;
}

}  // namespace dsmoe::app
