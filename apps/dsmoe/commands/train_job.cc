// From flags to a run that can take its first step.
#include "commands/train_job.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/readable.h"
#include "commands/kept_flags.h"
#include "commands/train_ranks.h"
#include "data/batches.h"
#include "data/split.h"
#include "model/file_layout.h"
#include "model/initialise.h"
#include "model/weight_files.h"
#include "store/checkpoint.h"
#include "train/name_pattern.h"
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

// Fills in what the command line leaves open and the config decides.
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

void check_complete(const TrainOptions& options, bool has_ids) {
  if (has_ids && !options.data.empty()) {
    fail(ErrorKind::usage, "--data and token ids were given; expected one of them");
  }
  if (has_ids || !options.data.empty()) return;
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

Request complete(TrainOptions options, const Given& given, bool has_ids) {
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
  check_complete(request.options, has_ids);
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
  if (run.shards > 1) keep("--shards", run.shards);
  if (run.expert_shards > 1) keep("--expert-shards", run.expert_shards);
}

// What processes wait for: the first reads the options that a run was begun with before it writes
// them again, and makes the data ready for all.
constexpr const char* kOptionsAreRead = "options are read";
constexpr const char* kDataIsReady = "the data is ready";

Request complete_for(TrainOptions options, const Given& given, bool has_ids, comm::Group* group) {
  Request request = complete(std::move(options), given, has_ids);
  if (group != nullptr) {
    request.options.ranks = group->size();
    group->barrier(kOptionsAreRead);
  }
  return request;
}

void fill_config(TrainOptions& options) {
  replace_lost(options);
  options.run.config = config_of(options);
  fill_lr(options);
  fill_sizes(options);
  fill_ranks(options);
  options.run.valid_first = true;
}

train::RunTokenizer tokenizer_of(const TrainOptions& options,
                                 const std::vector<data::NamedSource>& sources, ThreadPool& pool,
                                 const std::atomic<bool>* cancelled) {
  std::vector<std::string> files;
  for (const fs::path& file : data::files_of(sources)) files.push_back(file.string());
  return train::prepare_tokenizer({.given = options.tokenizer,
                                   .init = options.init,
                                   .run = options.run.out,
                                   .data = files,
                                   .separator = options.separator,
                                   .keys = options.keys,
                                   .found = train::found_tokenizer(options.run.out),
                                   .cancelled = cancelled},
                                  options.run.config, pool);
}

// Fills in what the data decides.
void fill_from_data(TrainOptions& options, const TrainParts& parts,
                    const std::optional<train::RunTokenizer>& tokenizer) {
  fill_steps(options, parts);
  train::RunOptions& run = options.run;
  run.data_identity = parts.identity();
  run.former_data_identity = parts.former_identity();
  run.init_identity = options.init.empty() ? "random" : "folder";
  if (!tokenizer) return;
  run.files = tokenizer->files;
  run.token_bytes = train::token_bytes(*tokenizer, run.config);
}

// Before anything is written.
void check_places(const TrainOptions& options, const std::vector<data::NamedSource>& sources) {
  std::vector<data::NamedSource> all = sources;
  for (data::NamedSource& source : data::find_unweighted(options.valid_data, "--valid-data")) {
    all.push_back(std::move(source));
  }
  data::check_outside(all, options.run.out, "--out");
  if (!options.cache.empty()) data::check_outside(all, options.cache, "--cache");
}

}  // namespace

// What ends a run is noted in run.json.
template <class F>
auto TrainJob::guarded(F&& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    has_ended_ = true;
    session_->fail(error);
    throw;
  }
}

TrainJob::TrainJob(const TrainOptions& options, const Given& given, Caller caller)
    : stopped_(caller.stopped), group_(caller.group) {
  Request request = complete_for(options, given, caller.ids != nullptr, group_);
  options_ = std::move(request.options);
  kept_ = std::move(request.kept);
  changed_ = std::move(request.changed);
  for (const std::string& change : changed_) {
    if (!is_told_later(change)) log_info("goes on with {}", change);
  }
  engine_.emplace(options_.common);
  fill_config(options_);
  initial_ = initial_weights(options_, engine_->pool());
  session_.emplace(options_.run.out, kProgram);
  train::check_start(options_.run);
  guarded([&] { prepare(given, caller); });
}

TrainJob::~TrainJob() {
  try {
    if (run_ != nullptr || on_threads_) end();
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

void TrainJob::prepare(const Given& given, Caller& caller) {
  train::RunOptions& run = options_.run;
  session_->begin({.given = given,
                   .common = options_.common,
                   .engine = *engine_,
                   .options = kept_,
                   .changed = changed_});
  read_data(caller);
  session_->keep_data();
  if (group_ != nullptr) group_->barrier(kDataIsReady);
  fill_from_data(options_, *parts_, tokenizer_);
  log_info("{} documents, {} tokens; {} parameters, {} active; {} steps of {} x {} tokens",
           with_commas(parts_->corpus().num_documents()),
           with_commas(parts_->corpus().num_tokens()), with_commas(run.config.num_parameters()),
           with_commas(run.config.num_active_parameters()), run.schedule.total_steps, run.batch,
           run.seq);
  keep_chosen(kept_, run);
  session_->describe(run, parts_->files_json(), kept_);
  hooks_ =
      session_->hooks(caller.hooks ? caller.hooks(run.schedule.total_steps) : train::RunHooks{});
  if (pairs_) {
    hooks_.measure = [this](const model::Model& model) {
      return pairs_->measure(engine_->context(), model);
    };
  }
  if (has_thread_ranks()) return;
  run_ = std::make_unique<train::TrainingRun>(engine_->context(), run,
                                              train::RunInput{.lock = &session_->lock(),
                                                              .ranks = group_,
                                                              .initial = *initial_,
                                                              .training = parts_->training(),
                                                              .validation = parts_->validation()},
                                              hooks_);
}

void TrainJob::train_on_threads() {
  run_as_threads(options_, engine_->context(), engine_->num_threads(),
                 [&](comm::Group& threads, const kernels::Context& context) {
                   const auto initial = initial_weights(options_, *context.pool);
                   train::RunOutcome own = train::run_training(context, options_.run,
                                                               {.lock = &session_->lock(),
                                                                .ranks = &threads,
                                                                .initial = *initial,
                                                                .training = parts_->training(),
                                                                .validation = parts_->validation()},
                                                               hooks_);
                   if (threads.rank() == 0) on_threads_ = std::move(own);
                 });
}

// The tokenizer, and the tokens: of files, or those that were given.
void TrainJob::read_data(Caller& caller) {
  train::RunOptions& run = options_.run;
  const std::vector<data::NamedSource> sources =
      caller.ids ? std::vector<data::NamedSource>() : data::find_sources(options_.data);
  check_places(options_, sources);
  if (!caller.ids || !options_.tokenizer.empty()) {
    tokenizer_.emplace(tokenizer_of(options_, sources, engine_->pool(), caller.cancelled));
  }
  if (!options_.eval_pairs.empty()) {
    if (!tokenizer_) {
      fail(ErrorKind::usage, "--eval-pairs beside token ids needs --tokenizer to read its texts");
    }
    pairs_.emplace(options_.eval_pairs, *tokenizer_, run.config, run.seq);
    run.figures = PairFigures::names();
  }
  parts_ = caller.ids
               ? std::make_unique<TrainParts>(options_, std::move(caller.ids))
               : std::make_unique<TrainParts>(options_, sources, *tokenizer_, caller.cancelled);
}

bool TrainJob::advance() {
  return guarded([&] {
    if (run_ == nullptr && !on_threads_) train_on_threads();
    if (run_ != nullptr && run_->advance()) return true;
    end();
    return false;
  });
}

train::Measured TrainJob::measure() {
  return guarded([&] { return run_->measure(); });
}

fs::path TrainJob::save() {
  return guarded([&] { return run_->save(); });
}

void TrainJob::end() {
  if (std::exchange(has_ended_, true)) return;
  const train::RunOutcome outcome = this->outcome();
  const bool left = !outcome.finished && !stopped_.empty();
  session_->end(outcome.steps_done, left ? stopped_ : how_it_ended(outcome));
}

TrainOptions complete_options(const TrainOptions& options, const Given& given) {
  return complete(options, given, false).options;
}

train::RunOutcome train_other_rank(const TrainOptions& options, const Given& given,
                                   comm::Group& group) {
  TrainOptions own = complete_for(options, given, false, &group).options;
  fill_config(own);
  Engine engine(own.common);
  group.barrier(kDataIsReady);
  const std::vector<data::NamedSource> sources = data::find_sources(own.data);
  const std::optional<train::RunTokenizer> tokenizer =
      tokenizer_of(own, sources, engine.pool(), nullptr);
  const TrainParts parts(own, sources, *tokenizer, nullptr);
  if (!own.eval_pairs.empty()) own.run.figures = PairFigures::names();
  fill_from_data(own, parts, tokenizer);
  const auto initial = initial_weights(own, engine.pool());
  return train::run_training(engine.context(), own.run,
                             {.ranks = &group,
                              .initial = *initial,
                              .training = parts.training(),
                              .validation = parts.validation()},
                             {});
}

}  // namespace dsmoe::app
