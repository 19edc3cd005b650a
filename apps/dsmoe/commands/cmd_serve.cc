// dsmoe serve: an OpenAI-compatible server, and a page that shows the experts at work.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/memory_return.h"
#include "commands/command.h"
#include "commands/demo_run.h"
#include "commands/model_choice.h"
#include "commands/options.h"
#include "serve/api_error.h"
#include "serve/chat_prompt.h"
#include "serve/host_rule.h"
#include "serve/sampling_defaults.h"
#include "serve/service.h"
#include "serve/supervisor.h"
#include "store/checkpoint.h"
#include "store/gguf/gguf_file.h"
#include "store/safetensors.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

struct ServeCommand {
  CommonOptions common;
  serve::ServiceOptions service;
  std::string model_id;
  infer::EngineOptions engine;
  std::string chat_template, template_date;
  std::vector<std::string> api_key_files;
  double kv_memory = 0;  // GiB
  double drain_seconds = 30;
  int64_t max_connections = 1024, max_connections_per_address = 0;
  int64_t max_bodies = 256;  // MiB
  bool no_auth = false;
  bool check = false;
  serve::SamplingDefaults sampling;
};

// The newest model of the demo's run, if there is one.
store::NewestCheckpoint find_demo() {
  const fs::path run(kDemoFolder);
  return fs::exists(run) ? store::newest_checkpoint(run) : store::NewestCheckpoint{};
}

// How many steps the training that left this checkpoint was to take; 0: it does not say.
int64_t planned_steps(const fs::path& checkpoint) {
  const auto state = store::SafetensorsFile::open(checkpoint / store::kTrainStateName);
  const auto plan = state.metadata().find("plan");
  if (plan == state.metadata().end()) return 0;
  const Json json = parse_json(plan->second, state.path().string());
  const auto steps = json.is_object() ? json.find("steps") : json.end();
  return steps != json.end() && steps->is_number_integer() ? steps->get<int64_t>() : 0;
}

// Whether the demo's training has to run before there is something to serve; says why.
bool needs_training(const store::NewestCheckpoint& demo, const std::string& url) {
  if (!demo.folder) {
    log_info(
        "no model was named and {} holds none: training the demo's model first; {} is 503 "
        "until it is done",
        kDemoFolder, url);
    return true;
  }
  const int64_t planned = planned_steps(*demo.folder);
  if (demo.step >= planned) return false;
  log_info(
      "the training in {} was stopped at step {} of {}: going on with it; {} is 503 until it is "
      "done (dsmoe serve {} serves what there is)",
      kDemoFolder, demo.step, planned, url, kDemoFolder);
  return true;
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

// Answers on a thread of its own from the start, so that a model may take its time: until it is
// there /health says so.
class Answering {
 public:
  explicit Answering(serve::Service& service) : service_(service), thread_([this] { run(); }) {}
  ~Answering() {
    if (!thread_.joinable()) return;  // else something has failed
    phase_ = Phase::leaving;
    service_.shut_down();
    thread_.join();
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  void model_is_there() { phase_ = Phase::serving; }
  void wait() { thread_.join(); }

 private:
  enum class Phase { loading, serving, leaving };
  void run() {
    service_.run();
    if (phase_ != Phase::loading) return;
    // A signal came meanwhile. Loading cannot be interrupted, but it only reads.
    log_info("stopped before the model was loaded");
    flush_output();
    flush_log();
    std::_Exit(kDone);
  }

  serve::Service& service_;
  std::atomic<Phase> phase_{Phase::loading};
  std::thread thread_;
};

std::string url_of(const serve::HttpOptions& http, uint16_t port) {
  const bool is_v6 = http.host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}/", is_v6 ? "[" + http.host + "]" : http.host, port);
}

// Everything that can be refused without a model is, before anything takes long.
void check_early(ServeCommand& command) {
  serve::ServiceOptions& service = command.service;
  if (const char* key = std::getenv("DSMOE_API_KEY")) {
    if (serve::is_blank(key)) {
      fail(ErrorKind::usage, "DSMOE_API_KEY is blank: give it a key, or unset it");
    }
    service.api.keys.emplace_back(key);
  }
  for (const std::string& file : command.api_key_files) {
    const std::vector<std::string> keys = serve::read_key_file(file);
    service.api.keys.insert(service.api.keys.end(), keys.begin(), keys.end());
  }
  serve::check_keys(service.api.keys);
  const std::string& origin = service.api.cors_origin;
  if (!origin.empty() && origin != "*" && !serve::is_origin(origin)) {
    fail(ErrorKind::usage,
         "--cors-origin {}: expected http://HOST or https://HOST, with a port if it has one and "
         "nothing behind it, or *",
         origin);
  }
  serve::check_exposure(
      service, command.no_auth ? serve::WithoutKeys::allowed : serve::WithoutKeys::refused);
  if (!command.common.model.empty()) {
    const ModelChoice choice =
        choose_model(command.common.model,
                     "model folder or a training run; without a name the demo's model is served");
    if (!choice.why.empty()) log_info("{}: {}", choice.folder, choice.why);
    command.common.model = choice.folder;
    const bool is_gguf = store::gguf::is_gguf(command.common.model);
    if (!is_gguf && !fs::exists(fs::path(command.common.model) / "config.json")) {
      fail(ErrorKind::input,
           "{}: there is no model here (a folder with config.json, a GGUF file, or a training run "
           "with a checkpoint); without a name the demo's model is served",
           command.common.model);
    }
  }
  service.http.drain_deadline =
      std::chrono::milliseconds(static_cast<int64_t>(command.drain_seconds * 1000));
  service.http.max_connections = static_cast<std::size_t>(command.max_connections);
  service.http.max_connections_per_address =
      static_cast<std::size_t>(command.max_connections_per_address);
  service.http.max_bodies_bytes = static_cast<std::size_t>(command.max_bodies) << 20;
  service.http.handles_signals = true;
}

// The server opens these once the model is loaded.
struct Loaded {
  std::unique_ptr<model::Model> model;
  serve::TextParts text;
  std::string id;
  infer::SamplerOptions sampling;
};

Loaded load(ServeCommand& command, std::optional<Engine>& engine) {
  const std::string& folder = command.common.model;
  Loaded loaded{
      .text = serve::load_text_parts(folder, command.chat_template),
      .id = command.model_id.empty() ? name_of_model(folder) : command.model_id,
      .sampling = serve::sampler_options(command.sampling, serve::read_generation_config(folder))};
  if (loaded.text.chat_template && !command.template_date.empty()) {
    loaded.text.chat_template->set_date(text::parse_date(command.template_date));
  }
  engine.emplace(command.common);
  loaded.model = engine->load(command.common);
  if (command.kv_memory > 0) {
    const double pages =
        command.kv_memory * 1073741824.0 / static_cast<double>(infer::kv_page_bytes(*loaded.model));
    command.engine.num_pages = std::max<int64_t>(1, static_cast<int64_t>(pages));  // 0: default
  }
  return loaded;
}

// A template that refuses the shortest conversation, or needs a tokenizer that is not there.
void check_template(const serve::ServedModel& served) {
  serve::ChatRequest request;
  request.messages.push_back({{"role", "user"}, {"content", "Hello"}});
  try {
    served.encode(serve::render_chat(request, served), text::AddSpecial::no);
  } catch (const serve::ApiError& e) {
    fail(ErrorKind::input, "{}: its chat template cannot be used: {}", served.id(), e.what());
  }
}

// Everything that starting does, but for the port and the demo's training.
int check_only(ServeCommand& command) {
  std::string& folder = command.common.model;
  if (folder.empty()) {
    const store::NewestCheckpoint demo = find_demo();
    if (!demo.folder) {
      fail(ErrorKind::input,
           "{}: the demo's model is not trained yet; name a model, or start "
           "without --check",
           kDemoFolder);
    }
    folder = demo.folder->string();
  }
  std::optional<Engine> engine;
  Loaded loaded = load(command, engine);
  infer::Engine batch(engine->context(), *loaded.model, command.engine);
  const serve::ServedModel served(loaded.id, batch, std::move(loaded.text), loaded.sampling);
  std::string chat = "no chat template";
  if (served.text().chat_template) {
    check_template(served);
    chat = "its chat template renders";
  }
  print("{} can be served: context {}, {} sequences at once, KV cache of {} pages; {}; {} keys\n",
        loaded.id, served.context(), command.engine.max_batch, batch.stats().pages, chat,
        command.service.api.keys.size());
  return kDone;
}

int run_serve(ServeCommand command) {
  if (command.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  give_freed_memory_back();
  log_in_background();
  output_in_background();
  check_early(command);
  if (command.check) return check_only(command);
  std::optional<Engine> engine;  // these outlive the server
  Loaded loaded;
  serve::Supervisor supervisor;
  command.service.http.on_drain = [&] { supervisor.stopping(); };
  serve::Service server(command.service);
  const std::string url = url_of(command.service.http, server.port());
  Answering answering(server);
  std::string& folder = command.common.model;
  if (folder.empty()) {
    store::NewestCheckpoint demo = find_demo();
    if (needs_training(demo, url)) {
      const auto tell = [&](const serve::TrainingProgress& at) { server.show_training(at); };
      if (const int code = train_default_demo(command.common, tell); code != kDone) return code;
      demo = find_demo();
    }
    if (!demo.folder) fail(ErrorKind::input, "{}: the demo left no model", kDemoFolder);
    folder = demo.folder->string();
  }
  loaded = load(command, engine);
  server.open({.context = engine->context(),
               .model = *loaded.model,
               .text = std::move(loaded.text),
               .id = loaded.id,
               .engine = command.engine,
               .sampling = loaded.sampling});
  answering.model_is_there();
  log_info("{}: context {}, {} sequences at once, KV cache of {} pages of {} tokens", loaded.id,
           loaded.model->context, command.engine.max_batch, server.engine().stats().pages,
           kernels::kKeyBlock);
  print("serving {} on {}\n", loaded.id, url);
  flush_output();
  supervisor.ready();
  const serve::Heartbeat heartbeat(supervisor, server.post(),
                                   [&] { return server.engine().silent_seconds(); });
  answering.wait();
  log_info("stopped");
  return kDone;
}

// These flags hold for requests that do not say it themselves.
void add_sampling_defaults(CommandLine& command, serve::SamplingDefaults& sampling) {
  command.option("--temperature", sampling.temperature, "of requests that do not say it")
      .range(0.0, 100.0)
      .type("T");
  command.option("--top-p", sampling.top_p, "the same").range(0.0, 1.0).type("P");
  command.option("--top-k", sampling.top_k, "the same; 0: all").at_least(0).type("K");
  command.option("--min-p", sampling.min_p, "the same").range(0.0, 1.0).type("P");
  command.option("--repetition-penalty", sampling.repetition_penalty, "the same")
      .range(0.01, 100.0)
      .type("R");
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
  command.option("--port", service.http.port, "port to listen on; 0: any free one").show_default();
  command
      .option("--api-key", service.api.keys,
              "key that clients must send; repeatable; other users of the machine can see it here, "
              "but not in the variable DSMOE_API_KEY or in a file")
      .type("KEY")
      .repeatable();
  command
      .option("--api-key-file", options->api_key_files,
              "keys that clients must send, one per line; blank lines and lines that begin with # "
              "are left out")
      .type("FILE")
      .repeatable();
  command.flag("--no-auth", options->no_auth,
               "no keys: let everyone in who reaches --host by an address");
  command.option("--model-name", options->model_id, "name in the API; default: the folder's");
  command
      .option("--cors-origin", service.api.cors_origin,
              "pages of this origin may ask; without keys the server also answers to its name; * "
              "for all")
      .type("ORIGIN");
  command
      .option("--chat-template", options->chat_template,
              "Jinja template; default: the model folder's")
      .type("FILE");
  command
      .option("--template-date", options->template_date,
              "day that the template's strftime_now tells, such as 2026-11-20, or today (when the "
              "server starts); default: it has none")
      .type("DATE");
  command.option("--max-batch", options->engine.max_batch, "sequences that run together")
      .range(int64_t{1}, int64_t{1} << 12)
      .show_default();
  command
      .option("--max-queue", options->engine.max_queue,
              "sequences that wait while those run; beyond: 429")
      .range(int64_t{1}, int64_t{1} << 20)
      .show_default();
  command
      .option("--chunk", options->engine.chunk_tokens,
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
  command
      .option("--max-connections", options->max_connections,
              "open at once; beyond: the one that waits longest is closed")
      .range(int64_t{1}, int64_t{1} << 20)
      .show_default();
  command
      .option("--max-connections-per-address", options->max_connections_per_address,
              "of one client; 0: a quarter of all, and all for this machine; behind a proxy: more")
      .range(int64_t{0}, int64_t{1} << 20)
      .show_default();
  command
      .option(
          "--max-bodies", options->max_bodies,
          "MiB that request bodies, and prompts until they are answered, hold together; beyond: "
          "503 for large ones")
      .range(int64_t{8}, int64_t{1} << 20)
      .type("MIB")
      .show_default();
  command.flag("--check", options->check,
               "load everything, say whether it can be served, and end; no port is opened");
  add_sampling_defaults(command, options->sampling);
  command.flag("-q,--quiet", options->common.quiet, "no messages on stderr but errors");
  add_run_flags(command, options->common);
  command.footer(
      "Any OpenAI client works with base_url http://127.0.0.1:8080/v1; a browser shows the "
      "page.\n\n"
      "Example:\n  dsmoe serve my-model/ --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/completions \\\n"
      "    -H 'Content-Type: application/json' \\\n"
      "    -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40}'");
  command.runs([options] { return run_serve(*options); });
}

}  // namespace dsmoe::app
