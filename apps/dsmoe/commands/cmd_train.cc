// dsmoe train: text and a config -> a trained Hugging Face folder.
#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/readable.h"
#include "commands/command.h"
#include "commands/kept_flags.h"
#include "commands/options.h"
#include "commands/pair_figures.h"
#include "commands/run_session.h"
#include "commands/train_options.h"
#include "commands/train_parts.h"
#include "data/batches.h"
#include "data/split.h"
#include "model/file_layout.h"
#include "model/initialise.h"
#include "model/weight_files.h"
#include "store/checkpoint.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"
#include "terminal/train_display.h"
#include "train/name_pattern.h"
#include "train/run.h"
#include "train/run_data.h"
#include "train/sources.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProgram = "train";

model::ModelConfig config_of(const TrainOptions& options) {
  if (options.config.empty() && options.init.empty()) {
    fail(ErrorKind::usage, "give --config config.json, or --init MODEL to go on from a model");
  }
  const std::string& path = options.config.empty() ? options.init : options.config;
  model::ModelConfig config = model::read_config(path);
  if (config.quantization) {
    fail(ErrorKind::input, "{}: a quantised model cannot be trained; use the one it was made from",
         path);
  }
  // Checkpoints hold what the run computes with.
  const bool is_fp32 = options.common.dtype.empty() ? config.torch_dtype == tensor::DType::F32
                                                    : options.common.dtype == "fp32";
  config.torch_dtype = is_fp32 ? tensor::DType::F32 : tensor::DType::BF16;
  return config;
}

void fill_lr(TrainOptions& options) {
  double& lr = options.run.schedule.max_lr;
  if (lr >= 0) return;
  const bool is_trained = !options.init.empty();
  lr = is_trained ? kLrOfTrainedWeights : kLrOfRandomWeights;
  log_info("--lr {}: the default {}", lr,
           is_trained ? "with --init; with larger ones it may forget what it has learned"
                      : "from random weights");
}

// What the command line leaves open and the config decides.
void fill_sizes(TrainOptions& options) {
  train::RunOptions& run = options.run;
  if (run.seq == 0) run.seq = std::min<int64_t>(run.config.max_position_embeddings, 1024);
  if (run.micro_batch == 0) {
    const bool fills_a_gpu = options.common.device == "cuda";
    run.micro_batch = train::default_micro_batch(run, fills_a_gpu ? 32768 : 4096);
  }
  run.schedule.kind = train::parse_schedule(options.schedule);
  run.recompute = options.recompute ? model::Recompute::blocks : model::Recompute::nothing;
  train::check_rows(run);
  train::select_tensors(model::written_tensors(run.config), run.patterns);
}

// The rest, from the size of the corpus.
void fill_steps(TrainOptions& options, const TrainParts& parts) {
  train::RunOptions& run = options.run;
  train::Schedule& schedule = run.schedule;
  if (schedule.total_steps == 0) {
    const data::MixedBatches batches(parts.training(),
                                     {.batch = run.batch, .seq = run.seq, .seed = run.seed});
    const int64_t epoch = batches.counted_targets() / run.batch / run.seq + 1;
    schedule.total_steps = std::max<int64_t>(100, epoch);
    log_info("--steps {}: {}", schedule.total_steps,
             schedule.total_steps == epoch ? "one pass over the data" : "the least by default");
  }
  schedule.warmup_steps = options.warmup >= 0
                              ? options.warmup
                              : std::clamp<int64_t>(schedule.total_steps / 20, 1, 2000);
  // What nobody asked for takes no more of the time than this. Where a result hangs on the steps of
  // the validations, they are not left to the clock.
  constexpr double kShare = 0.05;
  if (options.save_every < 0) run.save_share = kShare;
  if (options.valid_every < 0 && !run.keep_best && run.patience == 0) run.valid_share = kShare;
  run.save_every = options.save_every >= 0 ? options.save_every
                                           : std::max<int64_t>(1, schedule.total_steps / 10);
  run.valid_every = options.valid_every >= 0 ? options.valid_every
                                             : std::max<int64_t>(1, schedule.total_steps / 20);
}

// A run that goes on has all it began with, should config, tokenizer or the folder of --init be
// gone by now.
void replace_lost(TrainOptions& options) {
  if (!options.run.resume) return;
  std::optional<store::NewestCheckpoint> newest;
  for (std::string* path : {&options.config, &options.tokenizer, &options.init}) {
    std::error_code ignored;
    if (path->empty() || fs::exists(*path, ignored)) continue;
    if (!newest) newest = store::newest_checkpoint(options.run.out);
    if (!newest->folder) return;
    log_info("{} is not there any more; {} takes its place", *path, newest->folder->string());
    *path = newest->folder->string();
  }
}

std::unique_ptr<model::ParameterSource> initial_weights(const TrainOptions& options,
                                                        ThreadPool& pool) {
  if (options.init.empty()) {
    return std::make_unique<model::InitialWeights>(options.run.config, options.run.seed);
  }
  model::WeightFiles weights = model::open_weights(options.init, options.run.config, pool);
  return std::make_unique<model::FileParameters>(std::move(weights.tensors), options.run.config,
                                                 pool);
}

OrderedJson outcome_json(const train::RunOutcome& outcome) {
  OrderedJson json = {{"checkpoint", outcome.checkpoint.string()},
                      {"steps", outcome.steps_done},
                      {"finished", outcome.finished}};
  if (outcome.validation_loss) json["validation_loss"] = *outcome.validation_loss;
  if (outcome.last.validation && outcome.last.validation->bits_per_byte) {
    json["bits_per_byte"] = *outcome.last.validation->bits_per_byte;
  }
  if (outcome.first_validation_loss) json["first_validation_loss"] = *outcome.first_validation_loss;
  for (std::size_t i = 0;
       outcome.sources.size() > 1 && outcome.last.validation && i < outcome.sources.size(); ++i) {
    if (const auto& loss = outcome.last.validation->sources[i]) {
      json["validation_source_losses"][outcome.sources[i]] = *loss;
    }
  }
  for (const train::Figure& figure : outcome.last.figures)
    json["figures"][figure.name] = figure.value;
  if (outcome.best.loss) {
    json["best"] = {{"step", outcome.best.step}, {"validation_loss", *outcome.best.loss}};
  }
  return json;
}

void print_losses(const train::RunOutcome& outcome) {
  if (outcome.first_validation_loss) {
    print("before step 1    {:.4f}\n", *outcome.first_validation_loss);
  }
  if (outcome.validation_loss) print("validation loss  {:.4f}\n", *outcome.validation_loss);
  if (outcome.last.validation && outcome.last.validation->bits_per_byte) {
    print("bits per byte    {:.4f}\n", *outcome.last.validation->bits_per_byte);
  }
  if (outcome.sources.size() > 1 && outcome.last.validation) {
    for (std::size_t i = 0; i < outcome.sources.size(); ++i) {
      const auto& loss = outcome.last.validation->sources[i];
      print("  {:<14} {}\n", outcome.sources[i], loss ? fmt::format("{:.4f}", *loss) : "-");
    }
  }
  for (const train::Figure& figure : outcome.last.figures) {
    print("{:<16} {:.4f}\n", figure.name, figure.value);
  }
  if (outcome.best.loss && outcome.best.step > 0 && outcome.best.step < outcome.steps_done) {
    print("best             {:.4f} after step {}\n", *outcome.best.loss, outcome.best.step);
  }
}

void print_outcome(const TrainOptions& options, const train::RunOutcome& outcome) {
  if (options.common.json) return print_json(outcome_json(outcome));
  const std::string folder = outcome.checkpoint.string();
  print("checkpoint       {}\nsteps            {}\n", folder, outcome.steps_done);
  print_losses(outcome);
  if (outcome.early) {
    print("ended early      {} validations without a lower loss (--patience)\n",
          outcome.best.since);
  }
  if (outcome.finished) {
    print("try              dsmoe generate {} --prompt \"...\"\n", folder);
  } else {
    print("go on            dsmoe train --resume {}\n", options.run.out.string());
  }
}

// Which run, and whether it goes on; before anything else is looked at.
void find_run(TrainOptions& options) {
  train::RunOptions& run = options.run;
  run.resume = !options.resume.empty();
  if (run.resume && options.resume != kResumeOut) {
    const fs::path again = options.resume;
    if (!run.out.empty() && fs::weakly_canonical(run.out) != fs::weakly_canonical(again)) {
      fail(ErrorKind::usage, "--resume {} and --out {} are two runs; name one", options.resume,
           run.out.string());
    }
    run.out = again;
  }
  if (run.out.empty()) fail(ErrorKind::usage, "--out: expected RUN, got nothing");
}

void check_complete(const TrainOptions& options) {
  if (!options.data.empty()) return;
  if (!options.run.resume) fail(ErrorKind::usage, "--data: expected FILE, got nothing");
  std::error_code ignored;
  const std::string run = options.run.out.string();
  if (!fs::exists(options.run.out, ignored)) {
    fail(ErrorKind::io, "{}: no such folder; expected a run of dsmoe train", run);
  }
  fail(ErrorKind::usage,
       "{}: no {} in it says how it was begun; give --data, --config and the other options again",
       run, train::kRunRecordName);
}

// A command line, with what it leaves open taken from the options that the run was begun with.
struct Request {
  TrainOptions options;
  OrderedJson kept;                  // for those who go on
  std::vector<std::string> changed;  // given otherwise than kept
};

Request complete(TrainOptions options, const Given& given) {
  find_run(options);
  Request request{.options = options, .kept = flags_to_keep(given.flags), .changed = {}};
  const auto record = options.run.resume ? train::RunRecord::read(options.run.out) : std::nullopt;
  if (record && record->program() == kProgram) {
    const std::string what = (options.run.out / train::kRunRecordName).string();
    MergedFlags merged = merge_flags(record->options(), given.flags, what);
    request.options = {};
    try {
      parse_flags(merged.flags, [&](CommandLine& line) { add_train_flags(line, request.options); });
    } catch (const Error& error) {
      fail(ErrorKind::input, "with the options kept in {}: {}", what, error.what());
    }
    request.options.run.out = options.run.out;
    request.options.run.resume = true;
    request.kept = flags_to_keep(merged.flags);
    request.changed = std::move(merged.changed);
  }
  check_complete(request.options);
  return request;
}

// The checkpoint holds these too, and tells of changes when it is read.
bool is_told_later(const std::string& change) {
  for (const char* name : {"--steps ", "--lr ", "--schedule ", "--warmup ", "--weight-decay ",
                           "--clip ", "--bias-rate "}) {
    if (change.starts_with(name)) return true;
  }
  return false;
}

// The record keeps what the program chose, so that a later program does not choose otherwise.
void keep_chosen(OrderedJson& kept, const train::RunOptions& run) {
  const auto keep = [&](const char* name, const auto& value) {
    kept[name] = fmt::format("{}", value);
  };
  keep("--steps", run.schedule.total_steps);
  keep("--batch", run.batch);
  keep("--seq", run.seq);
  keep("--lr", run.schedule.max_lr);
  keep("--schedule", train::name_of(run.schedule.kind));
  keep("--warmup", run.schedule.warmup_steps);
  keep("--weight-decay", run.optimizer.weight_decay);
  keep("--clip", run.optimizer.clip);
  keep("--bias-rate", run.optimizer.bias_rate);
  keep("--seed", run.seed);
}

int interrupted_code() { return InterruptScope::exit_code(); }

// Before anything is written.
void check_places(const TrainOptions& options, const std::vector<data::NamedSource>& sources) {
  std::vector<data::NamedSource> all = sources;
  for (data::NamedSource& source : data::find_unweighted(options.valid_data, "--valid-data")) {
    all.push_back(std::move(source));
  }
  data::check_outside(all, options.run.out, "--out");
  if (!options.cache.empty()) data::check_outside(all, options.cache, "--cache");
}

train::RunOutcome train_in(RunSession& session, Engine& engine, Request& request,
                           model::ParameterSource& initial) {
  TrainOptions& options = request.options;
  train::RunOptions& run = options.run;
  const std::vector<data::NamedSource> sources = data::find_sources(options.data);
  check_places(options, sources);
  std::vector<std::string> files;
  for (const fs::path& file : data::files_of(sources)) files.push_back(file.string());
  const train::RunTokenizer tokenizer =
      train::prepare_tokenizer({.given = options.tokenizer,
                                .init = options.init,
                                .run = run.out,
                                .data = files,
                                .separator = options.separator,
                                .keys = options.keys,
                                .found = train::found_tokenizer(run.out),
                                .cancelled = &InterruptScope::flag()},
                               run.config, engine.pool());
  std::optional<PairFigures> pairs;
  if (!options.eval_pairs.empty()) {
    pairs.emplace(options.eval_pairs, tokenizer, run.config, run.seq);
    run.figures = PairFigures::names();
  }
  const TrainParts parts(options, sources, tokenizer);
  session.keep_data();
  fill_steps(options, parts);
  run.data_identity = parts.identity();
  run.former_data_identity = parts.former_identity();
  run.init_identity = options.init.empty() ? "random" : "folder";
  run.files = tokenizer.files;
  run.token_bytes = train::token_bytes(tokenizer, run.config);
  log_info("{} documents, {} tokens; {} parameters, {} active; {} steps of {} x {} tokens",
           with_commas(parts.corpus().num_documents()), with_commas(parts.corpus().num_tokens()),
           with_commas(run.config.num_parameters()),
           with_commas(run.config.num_active_parameters()), run.schedule.total_steps, run.batch,
           run.seq);
  keep_chosen(request.kept, run);
  session.describe(run, parts.files_json(), request.kept);
  TrainDisplay display;
  train::RunHooks hooks = session.hooks(display.hooks(run.schedule.total_steps));
  if (pairs) {
    hooks.measure = [&](const model::Model& model) {
      return pairs->measure(engine.context(), model);
    };
  }
  const train::RunOutcome outcome = train::run_training(engine.context(), run,
                                                        {.lock = session.lock(),
                                                         .initial = initial,
                                                         .training = parts.training(),
                                                         .validation = parts.validation()},
                                                        hooks);
  display.finish();
  return outcome;
}

int train_run(Request& request, const Given& given) {
  TrainOptions& options = request.options;
  Engine engine(options.common);
  train::RunOptions& run = options.run;
  replace_lost(options);
  run.config = config_of(options);
  fill_lr(options);
  fill_sizes(options);
  run.valid_first = true;
  const std::unique_ptr<model::ParameterSource> initial = initial_weights(options, engine.pool());
  RunSession session(run.out, kProgram);
  train::check_start(run);
  const train::RunOutcome outcome = session.guard([&] {
    session.begin({.given = given,
                   .common = options.common,
                   .engine = engine,
                   .options = request.kept,
                   .changed = request.changed});
    return train_in(session, engine, request, *initial);
  });
  print_outcome(options, outcome);
  return outcome.finished ? kDone : interrupted_code();
}

int run_train(const TrainOptions& options, const Given& given) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  const InterruptScope interrupt;
  Request request = complete(options, given);
  for (const std::string& change : request.changed) {
    if (!is_told_later(change)) log_info("goes on with {}", change);
  }
  try {
    return train_run(request, given);
  } catch (const train::DataInterrupted&) {
    log_info("stopped before the first step: nothing was lost");
    return interrupted_code();
  }
}

}  // namespace

void add_train(CommandLine& app) {
  auto options = std::make_shared<TrainOptions>();
  CommandLine command = app.command("train", "Train a model on text, or go on training one");
  add_train_flags(command, *options);
  command.footer(
      "Checkpoints RUN/step-00000100 are model folders. Weights do not depend on --threads,\n"
      "--micro-batch, --recompute or interruptions: ctrl-c finishes the step, saves and stops;\n"
      "dsmoe train --resume RUN goes on. docs/training.md has the rest.\n\n"
      "Examples:\n  dsmoe train --config configs/small.json --data corpus.txt --out run\n"
      "  dsmoe train --init my-model --data chats.jsonl --out tuned \\\n"
      "    --train '*.experts.*' --lr 1e-4");
  command.runs([options](const Given& given) { return run_train(*options, given); });
}

}  // namespace dsmoe::app
