// The loop around a step.
#include "train/run.h"

#include <algorithm>
#include <chrono>

#include "base/atomic_file.h"
#include "base/engine_version.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/muted_log.h"
#include "base/system_memory.h"
#include "comm/part.h"
#include "kernels/table.h"
#include "model/file_layout.h"
#include "train/disk_plan.h"
#include "train/folded_names.h"
#include "train/name_pattern.h"
#include "train/rank_agreement.h"
#include "train/routing_stats.h"
#include "train/run_identity.h"
#include "train/sources.h"
#include "train/time_share.h"
#include "train/validation.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The checkpoint to go on from, if any.
std::optional<store::NewestCheckpoint> find_start(const RunOptions& options) {
  check_start(options);
  remove_leftovers_in(options.out, store::kCheckpointPrefix);
  store::NewestCheckpoint newest = store::newest_checkpoint(options.out);
  const bool is_empty = !newest.folder && newest.passed_over.empty();
  if (is_empty) {
    if (options.resume)
      log_info("{}: no checkpoint to resume; starting afresh", options.out.string());
    return std::nullopt;
  }
  for (const store::PassedOver& other : newest.passed_over) {
    log_warning("{} is passed over: {}", other.name, other.reason);
  }
  if (!newest.folder) {
    fail(ErrorKind::input,
         "{}: none of its {} checkpoints verifies; move them away to start afresh",
         options.out.string(), newest.passed_over.size());
  }
  return newest;
}

// The same where several ranks look: the first decides, the others take its word.
std::optional<store::NewestCheckpoint> find_start(const RunOptions& options, comm::Group& group) {
  std::optional<store::NewestCheckpoint> start;
  if (group.rank() == 0) start = find_start(options);
  int64_t step = start ? start->step : -1;
  group.broadcast("the checkpoint to go on from", 0, std::as_writable_bytes(std::span(&step, 1)));
  if (group.rank() == 0 || step < 0) return start;
  start.emplace();
  start->step = step;
  start->folder = options.out / store::checkpoint_name(step);
  std::error_code ignored;
  if (!fs::exists(*start->folder, ignored)) {
    fail(ErrorKind::input,
         "rank {} does not see {}, from which rank 0 goes on; --out has to be a folder that all "
         "ranks see",
         group.rank(), start->folder->string());
  }
  return start;
}

// Ranks that share the experts of a replica: those with its number.
std::optional<comm::Part> expert_group(comm::Group& group, const RankLayout& layout) {
  if (layout.expert_ranks == 1) return std::nullopt;
  std::vector<int> members;
  for (int64_t e = 0; e < layout.expert_ranks; ++e)
    members.push_back(static_cast<int>(layout.replica() + e * layout.replicas()));
  return std::optional<comm::Part>(std::in_place, group, std::move(members));
}

data::BatchOptions batch_options(const RunOptions& options) {
  return {.batch = options.batch, .seq = options.seq, .seed = options.seed};
}

}  // namespace

class TrainingRun::Run {
 public:
  Run(const Context& context, const RunOptions& options, const RunInput& input,
      const RunHooks& hooks);
  bool advance();
  void save();
  Measured measure();
  RunOutcome outcome() const;
  int64_t steps_done() const { return step_; }
  const model::Model& model() const { return *model_; }

 private:
  void begin();
  // What the first rank decides after a step, for all.
  struct Decision {
    bool stops = false, saves = false, failed = false;
  };
  bool is_first() const { return group_.rank() == 0; }
  template <class T>
  void from_first(T& value);
  void expect_agreement();
  void make_model(const Context& context);
  void expect_disk(const std::vector<tensor::TensorSpec>& all,
                   const std::vector<tensor::TensorSpec>& trained);
  void describe_memory() const;
  void expect_workspace() const;
  void make_room();
  Measured measure_first();
  void recall(const BestValidation& best);
  bool is_over() const;
  bool lost_patience() const { return options_.patience > 0 && best_.since >= options_.patience; }
  void train_step(StepMetrics& metrics);
  bool validates(double elapsed);
  bool after_step(StepMetrics& metrics);
  bool is_due(int64_t every) const { return every > 0 && step_ % every == 0; }

  RunOptions options_;
  comm::Self self_;
  comm::Group& group_;  // all ranks
  RankLayout layout_;
  std::optional<comm::Part> expert_group_;
  const RunHooks no_hooks_;  // of ranks that are not the first
  const RunHooks& hooks_;
  RunIdentity identity_;
  std::optional<store::NewestCheckpoint> start_;
  std::unique_ptr<ParameterSource> resumed_;
  ParameterSource& base_;  // the first weights, or the resumed checkpoint's
  RoundedParameters frozen_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Trainer> trainer_;
  data::MixedBatches batches_;
  Validation validation_;
  data::Batch batch_;
  StepRows rows_;
  const StepResult* result_ = nullptr;  // of the last step
  TimeShare save_time_, valid_time_;
  double began_ = 0, step_ended_ = 0;  // seconds_now()
  BestValidation best_;
  int64_t step_ = 0;  // done
  int64_t saved_step_ = -1;
  uint64_t checkpoint_bytes_ = 0;
  std::vector<int64_t> damaged_;  // newer than the one resumed, but did not verify
  std::unique_ptr<MetricsLog> log_;
  std::unique_ptr<CollapseWatch> watch_;
  Measured first_;  // until the first step's line has taken it
  bool has_begun_ = false;
  bool has_ended_ = false;
  RunOutcome outcome_;
};

TrainingRun::Run::Run(const Context& context, const RunOptions& options, const RunInput& input,
                      const RunHooks& hooks)
    : options_(options),
      group_(input.ranks != nullptr ? *input.ranks : self_),
      layout_(layout_of(options, group_.rank(), group_.size())),
      expert_group_(expert_group(group_, layout_)),
      hooks_(is_first() ? hooks : no_hooks_),
      identity_(identity_of(options)),
      start_(find_start(options, group_)),
      resumed_(start_ ? folder_parameters(store::HfFolder::open(*start_->folder),
                                          model::kDeepseekNames, options.config, *context.pool)
                      : nullptr),
      base_(resumed_ ? *resumed_ : input.initial),
      frozen_(base_, options.config),
      batches_(input.training, batch_options(options)),
      validation_(input.validation, batch_options(options),
                  {.rows = options.valid_rows, .token_bytes = options_.token_bytes}),
      save_time_(options.save_share),
      valid_time_(options.valid_share) {
  expect_agreement();
  Context own = context;
  if (expert_group_) own.group = &*expert_group_;
  make_model(own);
  if (start_) {
    for (const std::string& change :
         restore_checkpoint(context, *start_->folder, identity_, trainer_->optimizer())) {
      log_info("the plan changed: {}", change);
    }
    step_ = saved_step_ = start_->step;
    for (const store::PassedOver& other : start_->passed_over) {
      if (const auto step = store::checkpoint_step(other.name)) damaged_.push_back(*step);
    }
    log_info("resumed from {}", start_->folder->string());
  }
}

// The first rank's value comes to all.
template <class T>
void TrainingRun::Run::from_first(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  group_.broadcast("what the first rank decides", 0, std::as_writable_bytes(std::span(&value, 1)));
}

void TrainingRun::Run::expect_agreement() {
  if (group_.size() == 1) return;
  std::vector<Agreed> own{{"engine version", std::to_string(kEngineVersion)}};
  for (const Json* part : {&identity_.plan, &identity_.fixed}) {
    for (const auto& [key, value] : part->items()) own.emplace_back(key, value.dump());
  }
  own.emplace_back("--expert-parallel", std::to_string(options_.expert_ranks));
  own.emplace_back("--recompute", std::to_string(static_cast<int>(options_.recompute)));
  own.emplace_back("--micro-batch", std::to_string(options_.micro_batch));
  own.emplace_back("validation",
                   fmt::format("{} rows, every {} steps, first {}, best {}, patience {}",
                               options_.valid_rows, options_.valid_every, options_.valid_first,
                               options_.keep_best, options_.patience));
  own.emplace_back("--save-every", std::to_string(options_.save_every));
  train::expect_agreement(group_, own);
}

void TrainingRun::Run::make_model(const Context& context) {
  const std::vector<tensor::TensorSpec> all = model::written_tensors(options_.config);
  const std::vector<tensor::TensorSpec> trained = select_tensors(all, options_.patterns);
  // Gradients, and this rank's part of masters and two moments.
  int64_t bytes = 0;
  for (const tensor::TensorSpec& spec : trained)
    bytes += spec.shape.num_elements() * (4 + 12 / layout_.ranks);
  if (trained.size() < all.size()) {
    for (const std::string& line : folded_names(trained)) log_info("trains {}", line);
    log_info("{} of {} tensors train; with masters, moments and gradients they take {} bytes",
             trained.size(), all.size(), bytes);
  }
  if (is_first()) expect_disk(all, trained);
  if (context.table->device == kernels::Device::cpu) expect_memory("training", bytes);
  model_ = model::make_model(context, options_.config, frozen_,
                             {.operand = options_.config.torch_dtype,
                              .context = options_.seq,
                              .passes = moe::Passes::forward_and_backward,
                              .rank = layout_.expert_rank(),
                              .ranks = layout_.expert_ranks});
  const auto trains = [&](const std::string& name) {
    return options_.patterns.empty() ||
           std::any_of(options_.patterns.begin(), options_.patterns.end(),
                       [&](const std::string& pattern) { return matches(pattern, name); });
  };
  trainer_ = std::make_unique<Trainer>(
      context, *model_, trains, base_,
      TrainerOptions{
          .optimizer = options_.optimizer,
          .losses = {.balance_alpha = options_.config.aux_loss_alpha,
                     .device_alpha = options_.device_alpha,
                     .num_devices = options_.num_devices,
                     .z_alpha = options_.z_alpha,
                     .rows_per_balance_group = rows_per_balance_group(options_)},
          .rows_per_micro_batch = options_.micro_batch,
          .max_row_tokens = options_.seq,
          .recompute = options_.recompute,
          .sharing = {.group = group_.size() > 1 ? &group_ : nullptr, .layout = layout_}});
  describe_memory();
  if (context.table->device == kernels::Device::cpu) expect_workspace();
}

// Linux promises any amount of memory and kills when it is filled, in the middle of a step.
void TrainingRun::Run::expect_workspace() const {
  int64_t bytes = 0;
  for (const tensor::Arena* arena : trainer_->arenas()) {
    bytes += static_cast<int64_t>(arena->total_bytes());
  }
  // A row in host memory: tokens, targets and a piece for each at most, and tokens, targets and
  // lengths once more without padding.
  constexpr int64_t kTokenBytes = 5 * sizeof(int32_t) + sizeof(data::Piece);
  const int64_t row = static_cast<int64_t>(sizeof(data::PackedRow)) + options_.seq * kTokenBytes;
  int64_t rows = 0;
  if (__builtin_mul_overflow(row, options_.batch, &rows)) rows = INT64_MAX / 2;
  expect_memory(fmt::format("training with --batch {} and --micro-batch {}", options_.batch,
                            options_.micro_batch),
                bytes + rows);
}

// What the checkpoints will take, said and compared with the disk before hours are spent.
void TrainingRun::Run::expect_disk(const std::vector<tensor::TensorSpec>& all,
                                   const std::vector<tensor::TensorSpec>& trained) {
  store::CheckpointContent content{.model = all};
  for (const tensor::TensorSpec& spec : trained) {
    for (const char* part : {"master.", "first_moment.", "second_moment."}) {
      content.state.push_back({part + spec.name, tensor::DType::F32, spec.shape});
    }
  }
  checkpoint_bytes_ = store::num_bytes_of(content);
  const int64_t done = start_ ? start_->step : 0;
  const store::CheckpointRoom room = store::checkpoint_room(options_.out, options_.retention, done,
                                                            store::free_disk_bytes(options_.out));
  const DiskPlan plan =
      plan_disk({.bytes = checkpoint_bytes_,
                 .num_added = num_checkpoints_added(options_, done, room.num_kept)},
                room);
  if (plan.message.empty()) return;
  const std::string text = fmt::format("{}: {}", options_.out.string(), plan.message);
  if (plan.kind == DiskPlan::Kind::impossible) fail(ErrorKind::resource, "{}", text);
  if (plan.kind == DiskPlan::Kind::tight) {
    log_warning("{}", text);
  } else {
    log_info("{}", text);
  }
}

void TrainingRun::Run::describe_memory() const {
  std::vector<const tensor::Arena*> arenas = trainer_->arenas();
  arenas.insert(arenas.begin(), &model_->weights);
  const std::string table = tensor::budget_table(arenas);
  // A device's memory is the first thing to run out.
  if (model_->weights.device() == tensor::Device::cpu) {
    log_debug("memory:\n{}", table);
  } else {
    log_info("device memory:\n{}", table);
  }
}

void TrainingRun::Run::save() {
  if (saved_step_ == step_) return;
  if (is_first()) make_room();
  save_checkpoint({.run = options_.out,
                   .step = step_,
                   .config = options_.config,
                   .identity = identity_,
                   .files = options_.files},
                  trainer_->optimizer(), frozen_);
  saved_step_ = step_;
  if (options_.keep_best && best_.step == step_) options_.retention.best = step_;
  if (is_first()) store::remove_old_checkpoints(options_.out, options_.retention, step_, damaged_);
  if (hooks_.on_saved) hooks_.on_saved(options_.out / store::checkpoint_name(step_));
}

void TrainingRun::Run::make_room() {
  for (const std::string& name :
       store::make_room(options_.out, options_.retention, saved_step_, checkpoint_bytes_,
                        store::free_disk_bytes(options_.out))) {
    log_warning("{} was removed: the disk has no room for the next checkpoint beside it", name);
  }
}

// What is worth knowing of the model as it is.
Measured TrainingRun::Run::measure() {
  const double start = seconds_now();
  Measured measured{.validation = validation_.run(*trainer_), .figures = {}};
  if (hooks_.measure) {
    const std::vector<double> values = hooks_.measure(*model_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      measured.figures.push_back({.name = options_.figures[i], .value = values[i]});
    }
  }
  valid_time_.add(seconds_now() - start);
  return measured;
}

// The best of the steps before. Whoever keeps its checkpoint is told again: a kill may have come
// between the two.
void TrainingRun::Run::recall(const BestValidation& best) {
  best_ = best;
  if (!options_.keep_best || best_.step == 0) return;
  options_.retention.best = best_.step;
  const fs::path folder = options_.out / store::checkpoint_name(best_.step);
  if (hooks_.on_best && fs::exists(folder / store::kManifestName)) hooks_.on_best(best_);
}

bool TrainingRun::Run::is_over() const {
  const int64_t total = options_.schedule.total_steps;
  if (step_ >= total) {
    log_info("{} steps are done already; --steps {} leaves nothing to do", step_, total);
    return true;
  }
  if (!lost_patience()) return false;
  log_info("{} validations had no lower loss; --patience {} leaves nothing to do", best_.since,
           options_.patience);
  return true;
}

// Before the first step of a run that has not begun.
Measured TrainingRun::Run::measure_first() {
  if (step_ > 0 || !options_.valid_first) return {};
  Measured first = measure();
  if (first.validation) {
    log_info("validation loss before step 1: {:.4f}", first.validation->loss);
    best_.update(0, first.validation->loss);
  }
  return first;
}

void TrainingRun::Run::train_step(StepMetrics& metrics) {
  const double start = seconds_now();
  batches_.fill(static_cast<uint64_t>(step_), batch_);
  pack_rows(batch_, rows_);
  metrics.step = step_ + 1;
  metrics.lr = options_.schedule.lr(step_ + 1);
  metrics.epoch = batch_.epoch;
  result_ = &trainer_->step(rows_, metrics.lr);
  ++step_;
  metrics.seconds = seconds_now() - start;
}

// The clock of the first rank counts.
bool TrainingRun::Run::validates(double elapsed) {
  bool now = step_ == options_.schedule.total_steps ||
             (is_due(options_.valid_every) && valid_time_.allows(elapsed));
  from_first(now);
  return now;
}

// What happens after a step besides the next one. True: the run ends here.
bool TrainingRun::Run::after_step(StepMetrics& metrics) {
  const int64_t total = options_.schedule.total_steps;
  const double elapsed = seconds_now() - began_;
  bool is_best = false;
  if (validates(elapsed)) {
    metrics.measured = outcome_.last = measure();
    const auto& validation = metrics.measured.validation;
    is_best = validation && best_.update(step_, validation->loss);
  }
  metrics.wall_seconds = seconds_now() - step_ended_;
  step_ended_ = seconds_now();
  outcome_.early = lost_patience();
  const bool keeps = is_best && options_.keep_best;

  Decision decision;
  std::exception_ptr failure;
  // A log that cannot be written ends the run; its steps are not lost for that.
  const auto or_save = [&](auto&& write) {
    try {
      write();
    } catch (const Error&) {
      failure = std::current_exception();
      decision.saves = decision.failed = true;
    }
  };
  if (is_first()) or_save([&] { log_->add(metrics, *result_); });
  if (is_first() && !failure) {
    if (hooks_.on_step) hooks_.on_step(metrics, *result_);
    decision.stops =
        (hooks_.should_stop && hooks_.should_stop()) || outcome_.early || step_ == total;
    decision.saves =
        decision.stops || keeps || (is_due(options_.save_every) && save_time_.allows(elapsed));
    if (decision.saves) or_save([&] { log_->sync(); });
  }
  from_first(decision);
  if (decision.saves) {
    const double start = seconds_now();
    save();
    save_time_.add(seconds_now() - start);
    if (failure) std::rethrow_exception(failure);
    if (decision.failed) fail(ErrorKind::io, "rank 0 cannot write its log; the step was saved");
    if (keeps && hooks_.on_best) hooks_.on_best(best_);
  }
  return decision.stops;
}

void TrainingRun::Run::begin() {
  std::vector<int64_t> moe_layers;
  for (int64_t layer = 0; layer < options_.config.num_hidden_layers; ++layer) {
    if (options_.config.is_moe_layer(layer)) moe_layers.push_back(layer);
  }
  has_begun_ = true;
  BestValidation best;
  if (is_first()) {
    log_ = std::make_unique<MetricsLog>(
        MetricsLog::Options{.run = options_.out,
                            .steps_done = step_,
                            .layers = moe_layers,
                            .top_k = options_.config.num_experts_per_tok,
                            .load_every = std::max<int64_t>(1, options_.schedule.total_steps / 500),
                            .sources = batches_.sources(),
                            .validation_sources = validation_.sources(),
                            .figures = options_.figures,
                            .recipe = recipe_of(options_)});
    best = log_->best_before();
  }
  from_first(best);
  recall(best);
  has_ended_ = is_over();
  outcome_.early = has_ended_ && step_ < options_.schedule.total_steps;
  if (has_ended_) return;
  watch_ = std::make_unique<CollapseWatch>(moe_layers, options_.config.n_routed_experts,
                                           options_.config.num_experts_per_tok);
  if (hooks_.on_start) hooks_.on_start(step_);
  began_ = step_ended_ = seconds_now();
  first_ = measure_first();
  if (first_.validation) outcome_.first_validation_loss = first_.validation->loss;
}

bool TrainingRun::Run::advance() {
  if (has_ended_) return false;
  if (!has_begun_) begin();
  if (has_ended_) return false;
  StepMetrics metrics{.first = std::move(first_)};
  first_ = {};
  train_step(metrics);
  for (const std::string& warning : watch_->add(result_->load)) log_warning("{}", warning);
  has_ended_ = after_step(metrics);
  return true;
}

RunOutcome TrainingRun::Run::outcome() const {
  RunOutcome outcome = outcome_;
  outcome.steps_done = step_;
  outcome.finished = step_ >= options_.schedule.total_steps || outcome.early;
  if (saved_step_ >= 0) outcome.checkpoint = options_.out / store::checkpoint_name(saved_step_);
  if (!has_begun_) return outcome;
  if (outcome.last.validation) outcome.validation_loss = outcome.last.validation->loss;
  outcome.sources = validation_.sources();
  outcome.best = best_;
  return outcome;
}

TrainingRun::TrainingRun(const Context& context, const RunOptions& options, const RunInput& input,
                         const RunHooks& hooks) {
  if (options.schedule.total_steps < 1) {
    fail(ErrorKind::usage, "--steps {}: expected at least 1", options.schedule.total_steps);
  }
  check_rows(options);
  run_ = std::make_unique<Run>(context, options, input, hooks);
}
TrainingRun::~TrainingRun() = default;

bool TrainingRun::advance() { return run_->advance(); }
int64_t TrainingRun::steps_done() const { return run_->steps_done(); }
Measured TrainingRun::measure() { return run_->measure(); }
std::filesystem::path TrainingRun::save() {
  run_->save();
  return run_->outcome().checkpoint;
}
const model::Model& TrainingRun::model() const { return run_->model(); }
RunOutcome TrainingRun::outcome() const { return run_->outcome(); }

RunOutcome run_training(const Context& context, const RunOptions& options, const RunInput& input,
                        const RunHooks& hooks) {
  // One rank speaks.
  std::optional<MutedLog> muted;
  if (input.ranks != nullptr && input.ranks->rank() > 0) muted.emplace();
  TrainingRun run(context, options, input, hooks);
  while (run.advance()) {
  }
  return run.outcome();
}

}  // namespace dsmoe::train
