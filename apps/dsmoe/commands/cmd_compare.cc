// dsmoe compare: the paper's question on any text: who is best at equal expert parameters.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/readable.h"
#include "base/utf8.h"
#include "commands/command.h"
#include "commands/options.h"
#include "commands/run_session.h"
#include "data/data_files.h"
#include "data/demo_tokens.h"
#include "demo_config.h"
#include "model/initialise.h"
#include "report/comparison_figure.h"
#include "report/comparison_folder.h"
#include "report/comparison_text.h"
#include "report/run_report.h"
#include "store/checkpoint.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"
#include "terminal/train_display.h"
#include "train/demo_data.h"
#include "train/name_pattern.h"
#include "train/run.h"
#include "train/run_data.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

// The corpus and the split are the same for every run; a run's seed decides weights and order.
constexpr uint64_t kDataSeed = 1;
constexpr double kValidFraction = 0.05;
constexpr int64_t kTokensPerDocument = 47;  // of the embedded corpus, about, with 512 tokens
// The product of all three can be counted.
constexpr int64_t kMostSteps = int64_t{1} << 24;
constexpr int64_t kMostBatch = int64_t{1} << 14;
constexpr int64_t kMostSeq = int64_t{1} << 24;

struct CompareOptions {
  CommonOptions common;
  Given given;
  std::string config, tokenizer, separator, cache;
  std::vector<std::string> data;  // empty: the embedded corpus
  std::vector<std::string> lr;    // as given
  std::vector<std::string> only;  // patterns of folders; empty: all runs
  fs::path out;
  int64_t tokens = 0, micro_batch = 0;
  report::CompareSettings settings;
};

model::ModelConfig base_of(const CompareOptions& options) {
  model::ModelConfig config =
      options.config.empty() ? model::parse_config(std::string(kCompareConfig), "compare config")
                             : model::read_config(options.config);
  const bool is_fp32 = options.common.dtype.empty() ? config.torch_dtype == tensor::DType::F32
                                                    : options.common.dtype == "fp32";
  config.torch_dtype = is_fp32 ? tensor::DType::F32 : tensor::DType::BF16;
  return config;
}

template <class T>
void add_all(std::vector<T>& values, const std::vector<T>& more) {
  values.insert(values.end(), more.begin(), more.end());
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void fill_defaults(CompareOptions& options) {
  report::CompareSettings& s = options.settings;
  s.base = base_of(options);
  if (s.seq == 0) s.seq = std::min<int64_t>(256, s.base.max_position_embeddings);
  if (options.tokens > 0) s.steps = (options.tokens + s.batch * s.seq - 1) / (s.batch * s.seq);
  train::parse_schedule(s.schedule);
  report::parse_rates(options.lr, s.lr);
  add_all(s.shape.shared, {});
  add_all(s.shape.fp32, {});
  s.warmup = std::clamp<int64_t>(s.steps / 20, 1, 2000);
  if (options.micro_batch == 0) options.micro_batch = train::rows_of_about(s.batch, s.seq, 2048);
}

struct CompareData {
  train::RunTokenizer tokenizer;
  std::unique_ptr<data::TokenCorpus> corpus;
  std::vector<data::CorpusFile> files;  // none: the embedded corpus
};

// Once the settings are written, all runs share what lies there.
train::FoundTokenizer found_tokenizer(const CompareOptions& options) {
  return fs::exists(options.out / report::kCompareFile) ? train::FoundTokenizer::is_the_runs
                                                        : train::FoundTokenizer::must_fit;
}

CompareData embedded_data(CompareOptions& options, ThreadPool& pool) {
  report::CompareSettings& s = options.settings;
  const data::DemoCorpus corpus(kDataSeed);
  train::make_demo_tokenizer(
      {.run = options.out, .found = found_tokenizer(options), .cancelled = &InterruptScope::flag()},
      s.base, kDataSeed, pool);
  CompareData data{.tokenizer = train::prepare_tokenizer({.run = options.out}, s.base, pool)};
  const data::Encoder encoder = train::encoder_of(data.tokenizer, s.base);
  const uint64_t count = train::num_demo_documents(s.steps * s.batch * s.seq, kTokensPerDocument);
  data::DemoTokens tokens = data::encode_demo(corpus, {.count = count}, encoder);
  s.floor = tokens.floor();
  s.data = fmt::format("demo, {} documents, tokenizer {:016x}", count, encoder.hash);
  s.data_title = fmt::format("embedded corpus, {} documents, {} tokens", with_commas(count),
                             with_commas(tokens.corpus.num_tokens()));
  data.corpus = std::make_unique<data::MemoryCorpus>(std::move(tokens.corpus));
  return data;
}

CompareData files_data(CompareOptions& options, ThreadPool& pool) {
  report::CompareSettings& s = options.settings;
  const std::vector<data::NamedSource> sources = data::find_unweighted(options.data);
  data::check_outside(sources, options.out, "--out");
  if (!options.cache.empty()) data::check_outside(sources, options.cache, "--cache");
  std::vector<data::CorpusInput> inputs;
  std::vector<std::string> files;
  std::string names;
  for (const data::NamedSource& source : sources) {
    for (const fs::path& file : source.files) {
      inputs.push_back({.path = file, .label = source.name});
      files.push_back(file.string());
    }
    // A name of any bytes, into a file of JSON.
    names += (names.empty() ? "" : ", ") +
             replace_ill_formed(source.name.empty() ? source.files.front().filename().string()
                                                    : source.name);
  }
  CompareData data{.tokenizer = train::prepare_tokenizer({.given = options.tokenizer,
                                                          .run = options.out,
                                                          .data = files,
                                                          .separator = options.separator,
                                                          .found = found_tokenizer(options),
                                                          .cancelled = &InterruptScope::flag()},
                                                         s.base, pool)};
  data::BuiltCorpus built = train::prepare_corpus(
      {.inputs = inputs,
       .cache = options.cache.empty() ? options.out / "cache" : fs::path(options.cache),
       .separator = options.separator,
       .cancelled = &InterruptScope::flag()},
      data.tokenizer, s.base);
  s.data = fmt::format("{:016x}", built.corpus.corpus_key());
  s.former_data = fmt::format("{:016x}", built.former_key);
  s.data_title =
      fmt::format("{}: {} documents, {} tokens", names, with_commas(built.corpus.num_documents()),
                  with_commas(built.corpus.num_tokens()));
  data.corpus = std::make_unique<data::ShardCorpus>(std::move(built.corpus));
  data.files = std::move(built.files);
  return data;
}

// A rate for a model that is not there would be forgotten.
void check_rates(const report::LearningRates& rates,
                 const std::vector<train::ComparedModel>& models) {
  for (const auto& [name, rate] : rates.own) {
    std::string known;
    bool found = false;
    for (const train::ComparedModel& model : models) {
      found |= model.name == name;
      known += (known.empty() ? "" : ", ") + model.name;
    }
    if (!found) {
      fail(ErrorKind::usage, "--lr {}={}: no such model; expected one of {}", name, rate, known);
    }
  }
}

// The settings in DIR are those of all its runs so far; seeds and models may be added.
void settle(const CompareOptions& options) {
  report::CompareSettings settings = options.settings;
  if (fs::exists(options.out / report::kCompareFile)) {
    report::check_same_comparison(options.out, settings);
    const report::CompareSettings before = report::read_settings(options.out);
    settings.num_seeds = std::max(settings.num_seeds, before.num_seeds);
    add_all(settings.shape.shared, before.shape.shared);
    add_all(settings.shape.fp32, before.shape.fp32);
    settings.shape.upper_bound |= before.shape.upper_bound;
  }
  report::write_settings(options.out, settings);
}

train::RunOptions run_options(const CompareOptions& options, const train::ComparedModel& model,
                              int64_t seed) {
  const report::CompareSettings& s = options.settings;
  train::RunOptions run{.out = options.out / report::run_name(model, seed),
                        .config = model.config,
                        .batch = s.batch,
                        .seq = s.seq,
                        .micro_batch = options.micro_batch,
                        .schedule = {.kind = train::parse_schedule(s.schedule),
                                     .max_lr = s.lr.of(model.name),
                                     .warmup_steps = s.warmup,
                                     .total_steps = s.steps},
                        .balance_group = train::rows_of_about(s.batch, s.seq, 2048),
                        .seed = static_cast<uint64_t>(seed),
                        .save_every = std::max<int64_t>(1, (s.steps + 3) / 4),
                        .valid_every = std::max<int64_t>(1, (s.steps + 19) / 20),
                        .valid_rows = s.valid_rows,
                        .retention = {.last = 1},
                        .data_identity = s.data,
                        .former_data_identity = s.former_data,
                        .init_identity = "random"};
  return run;
}

enum class RunEnd { finished, stopped };

RunEnd train_one(const CompareOptions& options, const Engine& engine, const CompareData& data,
                 const data::DocumentSplit& split, train::RunOptions run,
                 const std::string& label) {
  run.files = data.tokenizer.files;
  RunSession session(run.out, "compare");
  const store::NewestCheckpoint newest = store::newest_checkpoint(run.out);
  run.resume = newest.folder || !newest.passed_over.empty();
  model::InitialWeights initial(run.config, run.seed);
  TrainDisplay display(label);
  const train::RunOutcome outcome = session.guard([&] {
    session.begin({.given = options.given, .common = options.common, .engine = engine});
    session.describe(run, files_json(data.files));
    return train::run_training(
        engine.context(), run,
        {.lock = &session.lock(),
         .initial = initial,
         .training = {{.split = &split}},
         .validation = {{.split = &split, .part = data::SplitPart::validation}}},
        session.hooks(display.hooks(options.settings.steps)));
  });
  display.finish();
  return outcome.finished ? RunEnd::finished : RunEnd::stopped;
}

void describe(const std::vector<train::ComparedModel>& models, const report::CompareSettings& s) {
  for (const train::ComparedModel& model : models) {
    const train::ExpertParameters experts = train::count_expert_parameters(model.config, s.base);
    log_info("{:<28} {} parameters, {} active; experts {}, {} active; router {}", model.title,
             with_commas(model.config.num_parameters()),
             with_commas(model.config.num_active_parameters()), with_commas(experts.total),
             with_commas(experts.active), with_commas(experts.router));
  }
}

struct PlannedRun {
  const train::ComparedModel* model = nullptr;
  int64_t seed = 0;
};

// Seed by seed, so that an interrupted comparison has compared all models on some of them.
std::vector<PlannedRun> plan_runs(const CompareOptions& options,
                                  const std::vector<train::ComparedModel>& models) {
  std::vector<PlannedRun> runs;
  std::vector<bool> used(options.only.size(), false);
  for (int64_t seed = 1; seed <= options.settings.num_seeds; ++seed) {
    for (const train::ComparedModel& model : models) {
      bool wanted = options.only.empty();
      for (std::size_t i = 0; i < used.size(); ++i) {
        if (!train::matches(options.only[i], report::run_name(model, seed))) continue;
        used[i] = wanted = true;
      }
      if (wanted) runs.push_back({&model, seed});
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    fail(ErrorKind::usage, "--only {}: no run is called so; {} is the first of them, {} the last",
         options.only[i], report::run_name(models.front(), 1),
         report::run_name(models.back(), options.settings.num_seeds));
  }
  return runs;
}

RunEnd train_all(const CompareOptions& options, const Engine& engine, const CompareData& data,
                 const std::vector<PlannedRun>& runs) {
  const report::CompareSettings& s = options.settings;
  const data::DocumentSplit split(*data.corpus, {.fraction = kValidFraction, .seed = kDataSeed});
  // Refuses data without a validation part before anything is trained.
  data::PackedBatches(split, {.batch = s.batch, .seq = s.seq, .part = data::SplitPart::validation});
  int64_t number = 0;
  for (const auto& [model, seed] : runs) {
    ++number;
    const train::RunOptions run = run_options(options, *model, seed);
    if (report::read_run(run.out, s.steps)) {
      log_info("{} has finished before", run.out.string());
      continue;
    }
    const std::string label =
        fmt::format("{}/{} {} seed {}", number, runs.size(), model->name, seed);
    if (train_one(options, engine, data, split, run, label) == RunEnd::stopped) {
      return RunEnd::stopped;
    }
    if (!report::read_run(run.out, s.steps)) {
      fail(ErrorKind::input,
           "{}: its last checkpoint is there, but its metrics.jsonl does not hold the last "
           "validation; remove the folder to have it trained again",
           run.out.string());
    }
  }
  return RunEnd::finished;
}

int stopped() {
  log_info("stopped; the same command goes on where it was");
  return InterruptScope::exit_code();
}

int compare(CompareOptions& options) {
  check_comparison_folder(options.out);
  Engine engine(options.common);
  fill_defaults(options);
  const std::vector<train::ComparedModel> models =
      train::compared_models(options.settings.base, options.settings.shape);
  describe(models, options.settings);
  // Before the folder is bound to settings that no run can have.
  check_rates(options.settings.lr, models);
  const std::vector<PlannedRun> runs = plan_runs(options, models);
  for (const train::ComparedModel& model : models) {
    train::check_rows(run_options(options, model, 1));
  }
  const store::RunLock lock(options.out);
  const CompareData data = options.data.empty() ? embedded_data(options, engine.pool())
                                                : files_data(options, engine.pool());
  settle(options);
  log_info("data: {}", options.settings.data_title);
  if (train_all(options, engine, data, runs) == RunEnd::stopped) return stopped();
  const report::Comparison comparison = report::read_comparison(options.out);
  const fs::path report = report::report_path(options.out);
  report::write_report(report, report::comparison_report(comparison));
  const fs::path figure = report::write_figure(report, comparison);
  if (options.common.json) {
    OrderedJson json = report::comparison_json(comparison);
    json["report"] = report.string();
    json["figure"] = figure.empty() ? OrderedJson(nullptr) : OrderedJson(figure.string());
    print_json(json);
  } else {
    print("{}\nreport           {}\n", report::format_comparison(comparison), report.string());
    if (!figure.empty()) print("figure           {}\n", figure.string());
  }
  return kDone;
}

int run_compare(CompareOptions options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  const InterruptScope interrupt;
  try {
    return compare(options);
  } catch (const train::DataInterrupted&) {
    return stopped();
  }
}

void add_data_flags(CommandLine& command, CompareOptions& o) {
  command
      .option("--config", o.config,
              "config.json of architecture (c); default: configs/compare.json, built in")
      .replace([](const std::string& path) { return chosen_holder(path, "config.json"); })
      .type("FILE");
  command
      .option("--data", o.data,
              "text, JSONL, either as .zst, or folders of these; default: the embedded corpus")
      .type("FILE");
  command
      .option("--tokenizer", o.tokenizer,
              "tokenizer.json or its folder; default: one is trained on the data")
      .replace([](const std::string& path) { return chosen_holder(path, "tokenizer.json"); })
      .type("FILE");
  command
      .option("--separator", o.separator, "ends a document of a text file; default: <|endoftext|>")
      .type("TEXT");
  command.option("--cache", o.cache, "folder for token shards; default: DIR/cache").type("DIR");
}

void add_plan_flags(CommandLine& command, CompareOptions& o) {
  report::CompareSettings& s = o.settings;
  s.num_seeds = 3;
  s.steps = 300;
  s.batch = 8;
  s.lr.all = 3e-3;
  s.schedule = "cosine";
  s.valid_rows = 128;
  command
      .option("--segments", s.shape.segments,
              "m: (b) and (c) have m times as many experts as (a), 1/m as wide")
      .range(int64_t{2}, int64_t{1} << 10)
      .show_default();
  command.flag("--upper-bound", s.shape.upper_bound,
               "also a dense model as wide as all experts together");
  command
      .option("--shared", s.shape.shared,
              "also (c) with so many shared experts, as many fewer routed: 2,4")
      .comma_separated()
      .type("N");
  command
      .option("--fp32", s.shape.fp32,
              "also these models computed in fp32, which shows what roundings move: b,c")
      .comma_separated()
      .type("MODEL");
  command
      .option("--only", o.only,
              "train now only runs whose folders' names match: 'b-*', c-seed-2; the others later")
      .comma_separated()
      .type("PATTERN");
  command.option("--seeds", s.num_seeds, "runs of each, with seeds 1, 2, ...")
      .range(int64_t{1}, int64_t{100})
      .show_default();
  const Flag steps = command.option("--steps", s.steps, "updates of each run")
                         .range(int64_t{1}, kMostSteps)
                         .show_default();
  command.option("--tokens", o.tokens, "tokens of each run, instead of --steps")
      .range(int64_t{1}, kMostSteps * kMostBatch)
      .excludes(steps);
  command.option("--batch", s.batch, "rows per step").range(int64_t{1}, kMostBatch).show_default();
  command.option("--seq", s.seq, "tokens per row; default: the model's, at most 256")
      .range(int64_t{1}, kMostSeq);
  command
      .option("--micro-batch", o.micro_batch,
              "rows at a time: memory, not results; default: about 2048 tokens")
      .at_least(1);
  command
      .option("--lr", o.lr,
              "largest learning rate; MODEL=RATE for one model's own, as in 2e-3,dense=1e-3; "
              "default: 0.003")
      .comma_separated()
      .type("RATE");
  command.option("--schedule", s.schedule, "paper, cosine or constant").show_default();
  command.option("--valid-rows", s.valid_rows, "rows of one validation, at most")
      .at_least(1)
      .show_default();
}

}  // namespace

void add_compare(CommandLine& app) {
  auto options = std::make_shared<CompareOptions>();
  options->out = "compare-out";
  CommandLine command = app.command(
      "compare", "Train the paper's architectures at equal expert parameters and compare them");
  add_data_flags(command, *options);
  add_plan_flags(command, *options);
  command.option("-o,--out", options->out, "folder of the comparison").type("DIR").show_default();
  add_machine_flags(command, options->common);
  add_dtype_flag(command, options->common);
  add_output_flags(command, options->common);
  command.footer(
      "(a) top-K of N experts; (b) mK of mN experts, each 1/m as wide; (c) the same with Ks of "
      "them\n"
      "shared by all tokens; dense with the width that a token meets. All models of one seed see\n"
      "the same batches. Each DIR/<model>-seed-<n> is a run as dsmoe train makes it. The same\n"
      "command goes on after an interruption; more --seeds or models add runs.\n\n"
      "Examples:\n  dsmoe compare\n"
      "  dsmoe compare --config my.json --data corpus.txt.zst --tokens 20000000 \\\n"
      "    -o my-comparison");
  command.runs([options](const Given& given) {
    options->given = given;
    return run_compare(*options);
  });
}

}  // namespace dsmoe::app
