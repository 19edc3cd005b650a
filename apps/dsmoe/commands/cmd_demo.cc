// dsmoe demo: trains a small model on the built-in corpus and shows what its experts learned.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/demo_run.h"
#include "commands/kept_flags.h"
#include "commands/options.h"
#include "commands/run_session.h"
#include "data/content_hash.h"
#include "demo_config.h"
#include "model/file_layout.h"
#include "model/initialise.h"
#include "report/demo_report.h"
#include "report/run_report.h"
#include "store/folder_writer.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"
#include "terminal/train_display.h"
#include "train/demo_data.h"
#include "train/run_data.h"

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
  store::FolderWriter writer(options.run.out, model::written_tensors(config));
  const model::Inventory all = model::inventory(config);
  Progress progress({.label = "weights",
                     .total = static_cast<int64_t>(all.parameters.size()),
                     .unit = "tensors"});
  int64_t done = 0;
  for (const model::Parameter& parameter : all.parameters) {
    const model::StoredTensor stored = weights.tensor(parameter);
    writer.write(parameter.name, stored.elements);
    if (stored.scale) writer.write(tensor::scale_name(parameter.name), stored.scale);
    weights.release(parameter);
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
  run.valid_first = true;
}

struct DemoData {
  data::DemoTokens training, validation;
};

DemoData make_data(const train::RunOptions& run, const data::DemoCorpus& corpus,
                   const data::Encoder& encoder) {
  const uint64_t count =
      train::num_demo_documents(run.schedule.total_steps * run.batch * run.seq, kTokensPerDocument);
  return {.training = data::encode_demo(corpus, {.count = count}, encoder),
          .validation = data::encode_demo(
              corpus, {.first = data::kDemoValidation, .count = kValidDocuments}, encoder)};
}

report::DemoFigures measure(const DemoOptions& options, const Engine& engine,
                            const fs::path& folder, const train::RunTokenizer& tokenizer,
                            const data::DemoCorpus& corpus, const DemoData& data) {
  const auto trained = infer::load_model(engine.context(), folder, {});
  model::InitialWeights initial(options.run.config, options.run.seed);
  const auto untrained = model::make_model(engine.context(), options.run.config, initial,
                                           {.operand = options.run.config.torch_dtype});
  return report::measure_demo({.context = engine.context(),
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

// The last line: where the model's page is. `serve` finds the usual folder by itself.
std::string how_to_serve(const fs::path& run) {
  const std::string named = run == kDemoFolder ? "" : " " + run.string();
  return fmt::format(
      "serve            dsmoe serve{}   a page to talk to it and watch its experts\n", named);
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

// The demo makes these parts of a run in the run's own folder.
struct DemoRun {
  train::RunTokenizer tokenizer;
  data::DemoCorpus corpus;
  DemoData data;
};

DemoRun prepare_demo(train::RunOptions& run, ThreadPool& pool) {
  const data::DemoCorpus corpus(run.seed);
  train::make_demo_tokenizer({.run = run.out,
                              .found = train::found_tokenizer(run.out),
                              .cancelled = &InterruptScope::flag()},
                             run.config, run.seed, pool);
  train::RunTokenizer tokenizer = train::prepare_tokenizer({.run = run.out}, run.config, pool);
  const data::Encoder encoder = train::encoder_of(tokenizer, run.config);
  DemoData data = make_data(run, corpus, encoder);
  run.data_identity = fmt::format("demo, {} documents, tokenizer {:016x}",
                                  data.training.corpus.num_documents(), encoder.hash);
  run.init_identity = "random";
  run.files = tokenizer.files;
  run.token_bytes = train::token_bytes(tokenizer, run.config);
  return {.tokenizer = std::move(tokenizer), .corpus = corpus, .data = std::move(data)};
}

void print_demo(const DemoOptions& options, const report::DemoResult& result,
                const fs::path& report) {
  if (options.common.json) {
    OrderedJson json = report::demo_json(result);
    json["report"] = report.string();
    print_json(json);
  } else {
    print("{}\nreport           {}\n", report::format_demo(result), report.string());
    if (!options.on_progress) print("{}", how_to_serve(options.run.out));
  }
}

int train_demo(DemoOptions options, const Given& given) {
  Engine engine(options.common);
  train::RunOptions& run = options.run;
  run.config = config_of(options);
  run.config.torch_dtype = tensor::DType::BF16;
  fill_defaults(run);
  RunSession session(run.out, "demo");
  train::check_start(run);
  const InterruptScope interrupt;
  std::optional<DemoRun> demo;
  TrainDisplay display;
  const train::RunOutcome outcome = session.guard([&] {
    session.begin({.given = given,
                   .common = options.common,
                   .engine = engine,
                   .options = flags_to_keep(given.flags)});
    demo.emplace(prepare_demo(run, engine.pool()));
    session.keep_data();
    session.describe(run, OrderedJson::array());
    const data::DemoTokens& tokens = demo->data.training;
    // Only for the figure on the bar; what is printed at the end comes from documents of its own.
    const data::DocumentSplit split(tokens.corpus, {.fraction = 0.01, .seed = run.seed});
    log_info("{} documents, {} tokens; {} parameters, {} active; {} steps of {} x {} tokens",
             with_commas(tokens.corpus.num_documents()), with_commas(tokens.corpus.num_tokens()),
             with_commas(run.config.num_parameters()),
             with_commas(run.config.num_active_parameters()), run.schedule.total_steps, run.batch,
             run.seq);
    model::InitialWeights initial(run.config, run.seed);
    return train::run_training(
        engine.context(), run,
        {.lock = &session.lock(),
         .initial = initial,
         .training = {{.split = &split}},
         .validation = {{.split = &split, .part = data::SplitPart::validation}}},
        session.hooks(hooks_of(options, display)));
  });
  display.finish();
  if (!outcome.finished) return stopped(options, outcome);
  const report::DemoResult result{.model = outcome.checkpoint,
                                  .config = run.config,
                                  .steps = outcome.steps_done,
                                  .tokens = display.tokens(),
                                  .seconds = display.seconds(),
                                  .figures = measure(options, engine, outcome.checkpoint,
                                                     demo->tokenizer, demo->corpus, demo->data)};
  const fs::path report = report::report_path(run.out);
  report::write_report(
      report,
      report::run_report(engine.context(), {.run = run.out, .cancelled = &InterruptScope::flag()}));
  print_demo(options, result, report);
  return kDone;
}

int run_demo(const DemoOptions& options, const Given& given) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  if (options.random) return write_random(options);
  try {
    return train_demo(options, given);
  } catch (const train::DataInterrupted&) {
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
  return run_demo(options, {.words = {"dsmoe", "demo"}, .flags = {}});
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
  command.runs([options](const Given& given) { return run_demo(*options, given); });
}

}  // namespace dsmoe::app
