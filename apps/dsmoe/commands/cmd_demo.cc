// dsmoe demo: trains a small model on the built-in corpus and shows what its experts learned.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "command.h"
#include "data/content_hash.h"
#include "demo_config.h"
#include "demo_data.h"
#include "demo_report.h"
#include "demo_run.h"
#include "interrupt.h"
#include "model/initialise.h"
#include "options.h"
#include "output.h"
#include "run_report.h"
#include "store/folder_writer.h"
#include "train_data.h"
#include "train_display.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

// Far above what training starts from, so that untrained routers already have preferences to show.
constexpr double kRandomRange = 0.2;

constexpr uint64_t kValidDocuments = 1000;
constexpr int64_t kTokensPerDocument = 53;  // about, with the demo's tokenizer

struct DemoOptions {
  CommonOptions common;
  std::string config;
  bool random = false;
  train::RunOptions run;
  const char* how_to_go_on = "the same command with --resume goes on";
  OnDemoProgress on_progress;  // may be empty
};

model::ModelConfig config_of(const DemoOptions& options) {
  if (options.config.empty()) return model::parse_config(std::string(kDemoConfig), "demo config");
  return model::read_config(options.config);
}

int write_random(const DemoOptions& options) {
  model::ModelConfig config = config_of(options);
  if (options.config.empty()) config.initializer_range = kRandomRange;
  model::InitialWeights weights(config, options.run.seed);
  store::FolderWriter writer(options.run.out, weights.specs());
  Progress progress({.label = "weights",
                     .total = static_cast<int64_t>(weights.specs().size()),
                     .unit = "tensors"});
  int64_t done = 0;
  for (const tensor::TensorSpec& spec : weights.specs()) {
    writer.write(spec.name, weights.tensor(spec.name));
    weights.release(spec.name);
    progress.update(++done);
  }
  progress.finish();
  writer.add_file("config.json", config.to_json().dump(2) + "\n");
  writer.commit();
  print("{}: a model of {} random parameters (seed {})\n", options.run.out.string(),
        with_commas(config.num_parameters()), options.run.seed);
  return kDone;
}

void fill_defaults(train::RunOptions& run) {
  const int64_t steps = run.schedule.total_steps;
  run.seq = std::min<int64_t>(256, run.config.max_position_embeddings);
  run.micro_batch = run.balance_group = train::rows_of_about(run.batch, 1, 8);
  run.schedule.kind = train::ScheduleKind::cosine;
  run.schedule.warmup_steps = std::clamp<int64_t>(steps / 20, 1, 100);
  run.save_every = std::max<int64_t>(1, (steps + 3) / 4);
  run.valid_every = std::max<int64_t>(1, (steps + 9) / 10);
  run.retention.last = 1;
}

struct DemoData {
  data::DemoTokens training, validation;
};

DemoData make_data(const train::RunOptions& run, const data::DemoCorpus& corpus,
                   const data::Encoder& encoder) {
  const uint64_t count =
      num_demo_documents(run.schedule.total_steps * run.batch * run.seq, kTokensPerDocument);
  return {.training = data::encode_demo(corpus, {.count = count}, encoder),
          .validation = data::encode_demo(
              corpus, {.first = data::kDemoValidation, .count = kValidDocuments}, encoder)};
}

DemoFigures measure(const DemoOptions& options, const Engine& engine, const fs::path& folder,
                    const TrainTokenizer& tokenizer, const data::DemoCorpus& corpus,
                    const DemoData& data) {
  const auto trained = infer::load_model(engine.context(), folder, {});
  model::InitialWeights initial(options.run.config, options.run.seed);
  const auto untrained = model::make_model(engine.context(), options.run.config, initial,
                                           {.operand = options.run.config.torch_dtype});
  return measure_demo({.context = engine.context(),
                       .trained = *trained,
                       .untrained = *untrained,
                       .tokenizer = tokenizer.tokenizer,
                       .corpus = corpus,
                       .training = data.training,
                       .validation = data.validation,
                       .seed = options.run.seed,
                       .cancelled = &InterruptScope::flag()});
}

int stopped(const DemoOptions& options, const train::RunOutcome& outcome) {
  log_info("stopped after step {}; {}", outcome.steps_done, options.how_to_go_on);
  return InterruptScope::exit_code();
}

// What the display says on the terminal, and those who want to know as numbers.
train::RunHooks hooks_of(const DemoOptions& options, TrainDisplay& display) {
  const int64_t total = options.run.schedule.total_steps;
  train::RunHooks hooks = display.hooks(total);
  if (!options.on_progress) return hooks;
  hooks.on_step = [&, total, show = hooks.on_step](const train::StepMetrics& metrics,
                                                   const train::StepResult& result) {
    show(metrics, result);
    const double tokens_left =
        static_cast<double>(total - metrics.step) * static_cast<double>(result.tokens);
    options.on_progress(
        {.step = metrics.step,
         .total = total,
         .loss = result.language,
         .seconds_left = tokens_left * display.seconds() / static_cast<double>(display.tokens())});
  };
  return hooks;
}

int train_demo(DemoOptions options) {
  Engine engine(options.common);
  train::RunOptions& run = options.run;
  run.config = config_of(options);
  run.config.torch_dtype = tensor::DType::BF16;
  fill_defaults(run);
  const store::RunLock lock(run.out);
  train::check_start(run);
  const InterruptScope interrupt;
  const data::DemoCorpus corpus(run.seed);
  make_demo_tokenizer(run.out, found_tokenizer(run.out), run.config, run.seed, engine.pool());
  const TrainTokenizer tokenizer = prepare_tokenizer({.run = run.out}, run.config, engine.pool());
  const data::Encoder encoder = encoder_of(tokenizer, run.config);
  const DemoData data = make_data(run, corpus, encoder);
  // Only for the figure on the bar; what is printed at the end comes from documents of its own.
  const data::DocumentSplit split(data.training.corpus, {.fraction = 0.01, .seed = run.seed});
  run.data_identity = fmt::format("demo, {} documents, tokenizer {:016x}",
                                  data.training.corpus.num_documents(), encoder.hash);
  run.init_identity = "random";
  run.files = tokenizer.files;
  log_info("{} documents, {} tokens; {} parameters, {} active; {} steps of {} x {} tokens",
           with_commas(data.training.corpus.num_documents()),
           with_commas(data.training.corpus.num_tokens()), with_commas(run.config.num_parameters()),
           with_commas(run.config.num_active_parameters()), run.schedule.total_steps, run.batch,
           run.seq);
  model::InitialWeights initial(run.config, run.seed);
  TrainDisplay display;
  const train::RunOutcome outcome =
      train::run_training(engine.context(), run, {.lock = lock, .initial = initial, .split = split},
                          hooks_of(options, display));
  display.finish();
  if (!outcome.finished) return stopped(options, outcome);
  const DemoResult result{
      .model = outcome.checkpoint,
      .config = run.config,
      .steps = outcome.steps_done,
      .tokens = display.tokens(),
      .seconds = display.seconds(),
      .figures = measure(options, engine, outcome.checkpoint, tokenizer, corpus, data)};
  const fs::path report = report_path(run.out);
  write_report(report, run_report(engine, {.run = run.out}));
  if (options.common.json) {
    OrderedJson json = demo_json(result);
    json["report"] = report.string();
    print_json(json);
  } else {
    print("{}\nreport           {}\n", format_demo(result), report.string());
  }
  return kDone;
}

int run_demo(const DemoOptions& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  if (options.random) return write_random(options);
  try {
    return train_demo(options);
  } catch (const DataInterrupted&) {
    log_info("stopped before the first step: nothing was lost");
    return InterruptScope::exit_code();
  }
}

DemoOptions default_options() {
  DemoOptions options;
  train::RunOptions& run = options.run;
  run.out = kDemoFolder;
  run.batch = 4;
  run.schedule.total_steps = 1500;
  run.schedule.max_lr = 1e-2;
  return options;
}

}  // namespace

int train_default_demo(const CommonOptions& machine, OnDemoProgress on_progress) {
  DemoOptions options = default_options();
  options.common = {.threads = machine.threads, .device = machine.device, .quiet = machine.quiet};
  options.how_to_go_on = "the same command goes on";
  options.on_progress = std::move(on_progress);
  options.run.resume = fs::exists(options.run.out);
  return run_demo(options);
}

void add_demo(CommandLine& app) {
  auto options = std::make_shared<DemoOptions>(default_options());
  train::RunOptions& run = options->run;
  CommandLine command =
      app.command("demo", "Train a small model on a built-in corpus, show its experts");
  command.option("-o,--out", run.out, "folder of the run").type("DIR").show_default();
  command.option("--steps", run.schedule.total_steps, "fewer: sooner done, less learned")
      .range(int64_t{1}, int64_t{1} << 20)
      .show_default();
  command.option("--batch", run.batch, "rows of 256 tokens per step")
      .range(int64_t{1}, int64_t{1} << 12)
      .show_default();
  command.option("--lr", run.schedule.max_lr, "largest learning rate")
      .range(0.0, 1.0)
      .show_default();
  command.option("--seed", run.seed, "seed of corpus, weights and order").show_default();
  command
      .option("--config", options->config,
              "config.json of another shape; default: configs/demo.json, built in")
      .type("FILE");
  command.flag("--resume", run.resume, "go on with the run in DIR");
  command.flag("--random", options->random,
               "no training: only write a model of random weights to DIR, which must not exist");
  add_machine_flags(command, options->common);
  add_output_flags(command, options->common);
  command.footer(
      "The same seed and steps give the same model, for any number of threads.\n\n"
      "Examples:\n  dsmoe demo\n  dsmoe demo --steps 200 -o short-run\n"
      "  dsmoe demo --random -o random-model && dsmoe info random-model");
  command.runs([options] { return run_demo(*options); });
}

}  // namespace dsmoe::app
