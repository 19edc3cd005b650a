// dsmoe convert: a model folder to a GGUF file, and back.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "commands/command.h"
#include "commands/options.h"
#include "infer/convert.h"
#include "model/inventory.h"
#include "store/gguf/gguf_file.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

struct ConvertOptions {
  CommonOptions common;
  std::string to, type, out;
};

std::optional<tensor::DType> folder_type(const std::string& type) {
  if (type.empty()) return std::nullopt;
  if (type == "f32") return tensor::DType::F32;
  if (type == "bf16") return tensor::DType::BF16;
  fail(ErrorKind::usage, "--type {}: a model folder holds f32 or bf16", type);
}

infer::Outcome convert(const ConvertOptions& options, const Engine& engine) {
  const bool from_gguf = store::gguf::is_gguf(options.common.model);
  const std::string to = !options.to.empty() ? options.to : from_gguf ? "folder" : "gguf";
  const auto total =
      std::ssize(model::inventory(model::read_config(options.common.model)).parameters);
  Progress progress({.label = "convert", .total = total, .unit = "tensors"});
  const auto report = [&](int64_t done) { progress.update(std::min(done, total)); };
  if (to == "gguf") {
    const std::string type = options.type.empty() ? "bf16" : options.type;
    return infer::write_gguf(
        engine.context(), options.common.model, options.out,
        {.type = store::gguf::parse_written_type(type), .cancelled = &InterruptScope::flag()},
        report);
  }
  if (!from_gguf) {
    fail(ErrorKind::usage, "{} is a model folder already; --to gguf makes a GGUF file of it",
         options.common.model);
  }
  return infer::write_folder(
      engine.context(), options.common.model, options.out,
      {.type = folder_type(options.type), .cancelled = &InterruptScope::flag()}, report);
}

int run_convert(const ConvertOptions& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  const Engine engine(options.common);
  const InterruptScope interrupt;
  if (convert(options, engine) == infer::Outcome::cancelled) return kInterrupted;
  log_info("{}: written", options.out);
  return kDone;
}

}  // namespace

void add_convert(CommandLine& app) {
  auto options = std::make_shared<ConvertOptions>();
  CommandLine command = app.command(
      "convert", "A model folder to a GGUF file for llama.cpp and its relatives, and back");
  add_model_argument(command, options->common);
  command.option("--to", options->to, "gguf or folder; default: what the model is not")
      .one_of({"gguf", "folder"})
      .type("FORMAT");
  command
      .option("--type", options->type,
              "f32, f16, bf16, q8_0 or q4_0 in a GGUF file, bf16 by default; f32 or bf16 in a "
              "folder, by default as the file has it")
      .one_of({"f32", "f16", "bf16", "q8_0", "q4_0"})
      .type("TYPE");
  command.option("-o,--out", options->out, "file or folder to write").required().type("PATH");
  command.option("--threads", options->common.threads, "threads; default: physical cores")
      .range(int64_t{1}, int64_t{1024})
      .type("N");
  command.flag("-q,--quiet", options->common.quiet, "no messages on stderr but errors");
  command.footer(
      "What GGUF cannot say of a model is refused, never left out. Vectors and routers stay f32;\n"
      "embedding and head are q8_0 where the rest is q4_0. Every command takes a GGUF file where\n"
      "it takes a model folder.\n\n"
      "Examples:\n  dsmoe convert my-model/ --type q8_0 -o my-model.gguf\n"
      "  dsmoe convert downloaded.gguf -o model/");
  command.runs([options] { return run_convert(*options); });
}

}  // namespace dsmoe::app
