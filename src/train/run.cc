// The loop around a step.
#include "train/run.h"

#include <algorithm>
#include <chrono>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/system_memory.h"
#include "kernels/table.h"
#include "train/disk_plan.h"
#include "train/name_pattern.h"
#include "train/routing_stats.h"
#include "train/run_state.h"
#include "train/sources.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RunIdentity identity_of(const RunOptions& o) {
  Json patterns = Json::array();
  for (const std::string& pattern : o.patterns) patterns.push_back(pattern);
  return {.fixed = {{"config", sha256(o.config.to_json().dump())},
                    {"data", o.data_identity},
                    {"init", o.init_identity},
                    {"batch", o.batch},
                    {"seq", o.seq},
                    {"seed", o.seed},
                    {"train", patterns},
                    {"balance_group", rows_per_balance_group(o)},
                    {"z_loss", o.z_alpha},
                    {"device_loss", o.device_alpha},
                    {"num_devices", o.num_devices},
                    {"adamw", {o.optimizer.beta1, o.optimizer.beta2, o.optimizer.eps}}},
          .plan = {{"steps", o.schedule.total_steps},
                   {"lr", o.schedule.max_lr},
                   {"schedule", name_of(o.schedule.kind)},
                   {"warmup", o.schedule.warmup_steps},
                   {"weight_decay", o.optimizer.weight_decay},
                   {"clip", o.optimizer.clip},
                   {"bias_rate", o.optimizer.bias_rate}},
          .config = o.config.to_json(),
          .former_data = o.former_data_identity};
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

class Run {
 public:
  Run(const Context& context, const RunOptions& options, const RunInput& input,
      const RunHooks& hooks);
  RunOutcome loop();

 private:
  void make_model(const Context& context);
  void expect_disk(const std::vector<tensor::TensorSpec>& all,
                   const std::vector<tensor::TensorSpec>& trained);
  void describe_memory() const;
  void expect_workspace() const;
  void save();
  std::optional<double> validate();
  bool is_due(int64_t every) const { return every > 0 && step_ % every == 0; }

  RunOptions options_;
  const RunHooks& hooks_;
  RunIdentity identity_;
  std::optional<store::NewestCheckpoint> start_;
  std::unique_ptr<FolderTensors> resumed_;
  TensorSource& base_;  // the first weights, or the resumed checkpoint's
  StoredTensors frozen_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<Trainer> trainer_;
  data::PackedBatches batches_;
  std::unique_ptr<data::PackedBatches> validation_;
  int64_t step_ = 0;  // done
  int64_t saved_step_ = -1;
  uint64_t checkpoint_bytes_ = 0;
  std::vector<int64_t> damaged_;  // newer than the one resumed, but did not verify
};

Run::Run(const Context& context, const RunOptions& options, const RunInput& input,
         const RunHooks& hooks)
    : options_(options),
      hooks_(hooks),
      identity_(identity_of(options)),
      start_(find_start(options)),
      resumed_(start_ ? std::make_unique<FolderTensors>(store::HfFolder::open(*start_->folder))
                      : nullptr),
      base_(resumed_ ? *resumed_ : input.initial),
      frozen_(base_, options.config),
      batches_(input.split, {.batch = options.batch, .seq = options.seq, .seed = options.seed}) {
  make_model(context);
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
  try {
    validation_ = std::make_unique<data::PackedBatches>(
        input.split, data::BatchOptions{.batch = options.batch,
                                        .seq = options.seq,
                                        .seed = options.seed,
                                        .part = data::SplitPart::validation});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    log_info("no validation: {}", error.what());
  }
}

void Run::make_model(const Context& context) {
  const std::vector<tensor::TensorSpec> all = model::expected_tensors(options_.config);
  const std::vector<tensor::TensorSpec> trained = select_tensors(all, options_.patterns);
  int64_t bytes = 0;  // masters, two moments, gradients
  for (const tensor::TensorSpec& spec : trained) bytes += spec.shape.num_elements() * 16;
  if (trained.size() < all.size()) {
    for (const tensor::TensorSpec& spec : trained) {
      log_info("trains {} {}", spec.name, to_string(spec.shape));
    }
    log_info("{} of {} tensors train; with masters, moments and gradients they take {} bytes",
             trained.size(), all.size(), bytes);
  }
  expect_disk(all, trained);
  if (context.table->device == kernels::Device::cpu) expect_memory("training", bytes);
  model_ = model::make_model(context, options_.config, frozen_,
                             {.operand = options_.config.torch_dtype,
                              .context = options_.seq,
                              .passes = moe::Passes::forward_and_backward});
  const auto trains = [&](const std::string& name) {
    return options_.patterns.empty() ||
           std::any_of(options_.patterns.begin(), options_.patterns.end(),
                       [&](const std::string& pattern) { return matches(pattern, name); });
  };
  trainer_ = std::make_unique<Trainer>(
      context, *model_, trains, base_,
      TrainerOptions{.optimizer = options_.optimizer,
                     .losses = {.balance_alpha = options_.config.aux_loss_alpha,
                                .device_alpha = options_.device_alpha,
                                .num_devices = options_.num_devices,
                                .z_alpha = options_.z_alpha,
                                .rows_per_balance_group = rows_per_balance_group(options_)},
                     .rows_per_micro_batch = options_.micro_batch,
                     .max_row_tokens = options_.seq,
                     .recompute = options_.recompute});
  describe_memory();
  if (context.table->device == kernels::Device::cpu) expect_workspace();
}

// Linux promises any amount of memory and kills when it is filled, in the middle of a step.
void Run::expect_workspace() const {
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
void Run::expect_disk(const std::vector<tensor::TensorSpec>& all,
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

void Run::describe_memory() const {
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

void Run::save() {
  if (saved_step_ == step_) return;
  for (const std::string& name :
       store::make_room(options_.out, options_.retention, saved_step_, checkpoint_bytes_,
                        store::free_disk_bytes(options_.out))) {
    log_warning("{} was removed: the disk has no room for the next checkpoint beside it", name);
  }
  save_checkpoint({.run = options_.out,
                   .step = step_,
                   .config = options_.config,
                   .identity = identity_,
                   .files = options_.files},
                  trainer_->optimizer(), frozen_);
  saved_step_ = step_;
  store::remove_old_checkpoints(options_.out, options_.retention, step_, damaged_);
  if (hooks_.on_saved) hooks_.on_saved(options_.out / store::checkpoint_name(step_));
}

std::optional<double> Run::validate() {
  if (!validation_) return std::nullopt;
  const auto total = static_cast<int64_t>(validation_->rows_in_first_epoch());
  const int64_t rows = std::min(total, options_.valid_rows);
  Trainer::Evaluation sum;
  data::Batch batch;
  StepRows packed;
  for (int64_t first = 0; first < rows; first += options_.batch) {
    validation_->fill_rows(static_cast<uint64_t>(first), std::min(options_.batch, rows - first),
                           batch);
    pack_rows(batch, packed);
    const Trainer::Evaluation part = trainer_->evaluate(packed);
    sum.nats += part.nats;
    sum.counted += part.counted;
  }
  if (sum.counted == 0) return std::nullopt;
  return sum.nats / static_cast<double>(sum.counted);
}

RunOutcome Run::loop() {
  std::vector<int64_t> moe_layers;
  for (int64_t layer = 0; layer < options_.config.num_hidden_layers; ++layer) {
    if (options_.config.is_moe_layer(layer)) moe_layers.push_back(layer);
  }
  const int64_t total = options_.schedule.total_steps;
  if (step_ >= total) {
    log_info("{} steps are done already; --steps {} leaves nothing to do", step_, total);
    return {.steps_done = step_,
            .finished = true,
            .checkpoint = options_.out / store::checkpoint_name(step_)};
  }
  MetricsLog log({.run = options_.out,
                  .steps_done = step_,
                  .layers = moe_layers,
                  .top_k = options_.config.num_experts_per_tok,
                  .load_every = std::max<int64_t>(1, total / 500)});
  CollapseWatch watch(moe_layers, options_.config.n_routed_experts,
                      options_.config.num_experts_per_tok);
  // A log that cannot be written ends the run; its steps are not lost for that.
  const auto or_save = [&](auto&& write) {
    try {
      write();
    } catch (const Error&) {
      save();
      throw;
    }
  };
  if (hooks_.on_start) hooks_.on_start(step_);
  RunOutcome outcome;
  if (step_ == 0 && options_.valid_first) outcome.first_validation_loss = validate();
  if (outcome.first_validation_loss) {
    log_info("validation loss before step 1: {:.4f}", *outcome.first_validation_loss);
  }
  data::Batch batch;
  StepRows rows;
  while (step_ < total) {
    const double start = seconds_now();
    batches_.fill(static_cast<uint64_t>(step_), batch);
    pack_rows(batch, rows);
    StepMetrics metrics{
        .step = step_ + 1, .lr = options_.schedule.lr(step_ + 1), .epoch = batch.epoch};
    if (step_ == 0) metrics.first_validation_loss = outcome.first_validation_loss;
    const StepResult& result = trainer_->step(rows, metrics.lr);
    ++step_;
    metrics.seconds = seconds_now() - start;
    if (step_ == total || is_due(options_.valid_every)) {
      metrics.validation_loss = outcome.validation_loss = validate();
    }
    or_save([&] { log.add(metrics, result); });
    for (const std::string& warning : watch.add(result.load)) log_warning("{}", warning);
    if (hooks_.on_step) hooks_.on_step(metrics, result);
    const bool stop = hooks_.should_stop && hooks_.should_stop();
    if (stop || step_ == total || is_due(options_.save_every)) {
      or_save([&] { log.sync(); });
      save();
    }
    if (stop) break;
  }
  outcome.steps_done = step_;
  outcome.finished = step_ == total;
  if (saved_step_ >= 0) outcome.checkpoint = options_.out / store::checkpoint_name(saved_step_);
  return outcome;
}

}  // namespace

int64_t rows_of_about(int64_t batch, int64_t seq, int64_t tokens) {
  int64_t rows = std::clamp<int64_t>(tokens / seq, 1, batch);
  while (batch % rows != 0) --rows;
  return rows;
}

int64_t rows_per_balance_group(const RunOptions& options) {
  const bool is_balanced = options.config.aux_loss_alpha != 0 || options.device_alpha != 0;
  if (options.config.seq_aux || !is_balanced) return 1;
  return options.balance_group > 0 ? options.balance_group
                                   : rows_of_about(options.batch, options.seq, 4096);
}

int64_t default_micro_batch(const RunOptions& options, int64_t tokens) {
  const int64_t group = std::min(rows_per_balance_group(options), options.batch);
  return group * rows_of_about(options.batch / group, options.seq * group, tokens);
}

void check_rows(const RunOptions& o) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) fail(ErrorKind::usage, "--{} {}: expected at least 1", name, value);
  };
  positive("batch", o.batch);
  positive("micro-batch", o.micro_batch);
  positive("seq", o.seq);
  model::check_context(o.config, o.seq);
  if (o.batch % o.micro_batch != 0) {
    fail(ErrorKind::usage, "--micro-batch {} does not divide --batch {}", o.micro_batch, o.batch);
  }
  if (o.micro_batch % rows_per_balance_group(o) != 0) {
    fail(
        ErrorKind::usage,
        "--micro-batch {} is no multiple of the {} rows whose balance is one loss (seq_aux false); "
        "--balance-group sets them, which changes the result",
        o.micro_batch, rows_per_balance_group(o));
  }
  if (o.device_alpha != 0 && o.config.n_routed_experts % o.num_devices != 0) {
    fail(ErrorKind::usage, "--devices {} does not divide the {} routed experts", o.num_devices,
         o.config.n_routed_experts);
  }
}

void check_start(const RunOptions& options) {
  if (!options.resume && store::has_checkpoints(options.out)) {
    fail(ErrorKind::input,
         "{}: already holds checkpoints; add --resume to go on from them, or choose "
         "another --out",
         options.out.string());
  }
}

void pack_rows(const data::Batch& batch, StepRows& rows) {
  rows.clear();
  std::size_t room = 0;  // for every step: rows are padded to one length, a document has a token
  for (const data::PackedRow& row : batch.rows) room += row.tokens.size();
  for (auto* values : {&rows.tokens, &rows.targets, &rows.document_lengths}) values->reserve(room);
  for (const data::PackedRow& row : batch.rows) {
    const auto count = static_cast<std::ptrdiff_t>(row.num_tokens());
    rows.tokens.insert(rows.tokens.end(), row.tokens.begin(), row.tokens.begin() + count);
    rows.targets.insert(rows.targets.end(), row.targets.begin(), row.targets.begin() + count);
    rows.row_lengths.push_back(static_cast<int32_t>(count));
    rows.documents_per_row.push_back(static_cast<int32_t>(row.pieces.size()));
    for (const data::Piece& piece : row.pieces) rows.document_lengths.push_back(piece.length);
  }
}

RunOutcome run_training(const Context& context, const RunOptions& options, const RunInput& input,
                        const RunHooks& hooks) {
  if (options.schedule.total_steps < 1) {
    fail(ErrorKind::usage, "--steps {}: expected at least 1", options.schedule.total_steps);
  }
  check_rows(options);
  return Run(context, options, input, hooks).loop();
}

}  // namespace dsmoe::train
