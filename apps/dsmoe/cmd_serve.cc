// dsmoe serve: an OpenAI-compatible server, and a page that shows the experts at work.
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "command.h"
#include "demo_run.h"
#include "options.h"
#include "output.h"
#include "serve/service.h"
#include "store/checkpoint.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

struct ServeCommand {
  CommonOptions common;
  serve::ServiceOptions service;
  std::string chat_template;
  double kv_memory = 0;  // GiB
  double drain_seconds = 30;
  bool no_auth = false;
};

// A folder with config.json, or a run whose newest checkpoint is meant.
std::string model_folder(const std::string& given) {
  if (fs::exists(fs::path(given) / "config.json")) return given;
  const store::NewestCheckpoint newest = store::newest_checkpoint(given);
  return newest.folder ? newest.folder->string() : given;
}

// The demo's model, trained first when there is none.
std::string demo_folder() {
  const fs::path run(kDemoFolder);
  if (fs::exists(run)) {
    const store::NewestCheckpoint newest = store::newest_checkpoint(run);
    if (newest.folder) return newest.folder->string();
  }
  log_info("no model was named and {} holds none: training the demo's model first", run.string());
  train_default_demo();
  const store::NewestCheckpoint newest = store::newest_checkpoint(run);
  if (!newest.folder) fail(ErrorKind::input, "{}: the demo left no model", run.string());
  return newest.folder->string();
}

std::string name_of_model(const fs::path& folder) {
  const fs::path clean = fs::absolute(folder).lexically_normal();
  const fs::path last = clean.has_filename() ? clean.filename() : clean.parent_path().filename();
  // demo-out/step-00001200: the run's name says more.
  if (store::checkpoint_step(last.string())) {
    return (clean.has_filename() ? clean : clean.parent_path()).parent_path().filename().string();
  }
  return last.string();
}

int run_serve(ServeCommand command) {
  if (command.common.quiet) set_log_level(LogLevel::quiet);
  serve::ServiceOptions& service = command.service;
  if (const char* key = std::getenv("DSMOE_API_KEY"); key != nullptr && *key != '\0') {
    service.api.keys.emplace_back(key);
  }
  serve::check_exposure(
      service, command.no_auth ? serve::WithoutKeys::allowed : serve::WithoutKeys::refused);
  service.http.drain_deadline =
      std::chrono::milliseconds(static_cast<int64_t>(command.drain_seconds * 1000));
  service.http.handles_signals = true;
  command.common.model =
      command.common.model.empty() ? demo_folder() : model_folder(command.common.model);
  if (service.model_id.empty()) service.model_id = name_of_model(command.common.model);
  serve::TextParts text = serve::load_text_parts(command.common.model, command.chat_template);
  const Engine engine(command.common);
  const auto model = engine.load(command.common);
  if (command.kv_memory > 0) {
    service.engine.num_pages = static_cast<int64_t>(
        command.kv_memory * 1073741824.0 / static_cast<double>(infer::kv_page_bytes(*model)));
  }
  serve::Service server(engine.context(), *model, std::move(text), service);
  const infer::EngineStats stats = server.engine().stats();
  log_info("{}: context {}, {} sequences at once, KV cache of {} pages of {} tokens",
           service.model_id, model->context, service.engine.max_batch, stats.pages,
           kernels::kKeyBlock);
  const bool is_v6 = service.http.host.find(':') != std::string::npos;
  print("serving {} on http://{}:{}/\n", service.model_id,
        is_v6 ? "[" + service.http.host + "]" : service.http.host, server.port());
  flush_output();
  server.run();
  log_info("stopped");
  return kDone;
}

}  // namespace

void add_serve(CommandLine& app) {
  auto options = std::make_shared<ServeCommand>();
  serve::ServiceOptions& service = options->service;
  CommandLine command = app.command("serve", "Serve a model over the OpenAI API, with a page");
  command
      .option("model", options->common.model,
              "model folder or training run; default: the demo's, trained if need be")
      .type("MODEL");
  command.option("--host", service.http.host, "address to listen on").show_default();
  command.option("--port", service.http.port, "0: any free one").show_default();
  command
      .option("--api-key", service.api.keys,
              "key that clients must send; repeatable; also the variable DSMOE_API_KEY")
      .type("KEY")
      .repeatable();
  command.flag("--no-auth", options->no_auth, "let everyone in who reaches --host");
  command.option("--model-name", service.model_id, "name in the API; default: the folder's");
  command
      .option("--cors-origin", service.api.cors_origin, "pages of this origin may ask; * for all")
      .type("ORIGIN");
  command
      .option("--chat-template", options->chat_template,
              "Jinja template; default: the model folder's")
      .type("FILE");
  command.option("--max-batch", service.engine.max_batch, "sequences that run together")
      .range(int64_t{1}, int64_t{1} << 12)
      .show_default();
  command.option("--max-queue", service.engine.max_queue, "sequences that wait; beyond: 429")
      .range(int64_t{1}, int64_t{1} << 20)
      .show_default();
  command
      .option("--chunk", service.engine.chunk_tokens,
              "tokens of one step: smaller is smoother, larger is faster")
      .range(int64_t{1}, int64_t{1} << 16)
      .show_default();
  command
      .option("--kv-memory", options->kv_memory,
              "GiB of the KV cache; default: a full context for each of --max-batch, at most 4")
      .range(0.0, 1e6)
      .type("GIB");
  command
      .option("--drain-seconds", options->drain_seconds,
              "how long running requests may take after SIGTERM")
      .range(0.0, 86400.0)
      .show_default();
  command.flag("-q,--quiet", options->common.quiet, "no messages on stderr but errors");
  add_run_flags(command, options->common);
  command.footer(
      "Any OpenAI client works with base_url http://127.0.0.1:8080/v1; a browser shows the "
      "page.\n\n"
      "Example:\n  dsmoe serve my-model/ --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40}'");
  command.runs([options] { return run_serve(*options); });
}

}  // namespace dsmoe::app
