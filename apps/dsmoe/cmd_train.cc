// dsmoe train: text and a config -> a trained Hugging Face folder.
#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "command.h"
#include "data/batches.h"
#include "data/split.h"
#include "interrupt.h"
#include "model/initialise.h"
#include "options.h"
#include "output.h"
#include "store/checkpoint.h"
#include "store/hf_folder.h"
#include "train/name_pattern.h"
#include "train/run.h"
#include "train/sources.h"
#include "train_data.h"
#include "train_display.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

// With the moments of AdamW at zero the first steps move every weight by about the learning rate:
// what is right for random weights takes a trained model apart (docs/training.md).
constexpr double kLrOfRandomWeights = 1e-3, kLrOfTrainedWeights = 1e-4;

struct TrainOptions {
  CommonOptions common;
  std::string config, tokenizer, init, cache, separator, schedule = "paper";
  std::vector<std::string> data;
  double valid_fraction = 0.05;
  int64_t warmup = -1, save_every = -1, valid_every = -1;
  bool recompute = false;
  train::RunOptions run;
};

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
  train::select_tensors(model::expected_tensors(run.config), run.patterns);
}

// The rest, from the size of the corpus.
void fill_steps(TrainOptions& options, const data::DocumentSplit& split) {
  train::RunOptions& run = options.run;
  train::Schedule& schedule = run.schedule;
  if (schedule.total_steps == 0) {
    data::PackedBatches batches(split, {.batch = run.batch, .seq = run.seq, .seed = run.seed});
    const int64_t epoch = batches.counted_targets() / (run.batch * run.seq) + 1;
    schedule.total_steps = std::max<int64_t>(100, epoch);
    log_info("--steps {}: {}", schedule.total_steps,
             schedule.total_steps == epoch ? "one pass over the data" : "the least by default");
  }
  schedule.warmup_steps = options.warmup >= 0
                              ? options.warmup
                              : std::clamp<int64_t>(schedule.total_steps / 20, 1, 2000);
  run.save_every = options.save_every >= 0 ? options.save_every
                                           : std::max<int64_t>(1, schedule.total_steps / 10);
  run.valid_every = options.valid_every >= 0 ? options.valid_every
                                             : std::max<int64_t>(1, schedule.total_steps / 20);
}

// A run that goes on has all it began with, should the folder of --init be gone by now.
void replace_lost_init(TrainOptions& options) {
  if (!options.run.resume || options.init.empty() || fs::exists(options.init)) return;
  const store::NewestCheckpoint newest = store::newest_checkpoint(options.run.out);
  if (!newest.folder) return;
  log_info("{} is not there any more; {} takes its place", options.init, newest.folder->string());
  options.init = newest.folder->string();
}

std::unique_ptr<tensor::TensorSource> initial_weights(const TrainOptions& options) {
  if (options.init.empty()) {
    return std::make_unique<model::InitialWeights>(options.run.config, options.run.seed);
  }
  store::HfFolder folder = store::HfFolder::open(options.init);
  folder.check(model::expected_tensors(options.run.config));
  return std::make_unique<train::FolderTensors>(std::move(folder));
}

void print_outcome(const TrainOptions& options, const train::RunOutcome& outcome) {
  const std::string folder = outcome.checkpoint.string();
  if (options.common.json) {
    OrderedJson json = {
        {"checkpoint", folder}, {"steps", outcome.steps_done}, {"finished", outcome.finished}};
    if (outcome.validation_loss) json["validation_loss"] = *outcome.validation_loss;
    if (outcome.first_validation_loss) {
      json["first_validation_loss"] = *outcome.first_validation_loss;
    }
    print_json(json);
    return;
  }
  print("checkpoint       {}\nsteps            {}\n", folder, outcome.steps_done);
  if (outcome.first_validation_loss) {
    print("before step 1    {:.4f}\n", *outcome.first_validation_loss);
  }
  if (outcome.validation_loss) print("validation loss  {:.4f}\n", *outcome.validation_loss);
  if (outcome.finished) {
    print("try              dsmoe generate {} --prompt \"...\"\n", folder);
  } else {
    print("go on            the same command with --resume\n");
  }
}

int interrupted_code() { return InterruptScope::exit_code(); }

int train_run(TrainOptions& options) {
  Engine engine(options.common);
  train::RunOptions& run = options.run;
  replace_lost_init(options);
  run.config = config_of(options);
  fill_lr(options);
  fill_sizes(options);
  run.valid_first = !options.init.empty();
  const std::unique_ptr<tensor::TensorSource> initial = initial_weights(options);
  const store::RunLock lock(run.out);
  train::check_start(run);
  const TrainTokenizer tokenizer = prepare_tokenizer({.given = options.tokenizer,
                                                      .init = options.init,
                                                      .run = run.out,
                                                      .data = options.data,
                                                      .separator = options.separator,
                                                      .found = found_tokenizer(run.out)},
                                                     run.config, engine.pool());
  const data::BuiltCorpus built =
      prepare_corpus({.data = options.data,
                      .cache = options.cache.empty() ? run.out / "cache" : fs::path(options.cache),
                      .separator = options.separator},
                     tokenizer, run.config);
  const data::DocumentSplit split(built.corpus,
                                  {.fraction = options.valid_fraction, .seed = run.seed});
  fill_steps(options, split);
  const auto data_identity = [&](uint64_t key) {
    return fmt::format("{:016x}, {} for validation", key, options.valid_fraction);
  };
  run.data_identity = data_identity(built.corpus.corpus_key());
  run.former_data_identity = data_identity(built.former_key);
  run.init_identity = options.init.empty() ? "random" : "folder";
  run.files = tokenizer.files;
  log_info("{} documents, {} tokens; {} parameters, {} active; {} steps of {} x {} tokens",
           with_commas(built.corpus.num_documents()), with_commas(built.corpus.num_tokens()),
           with_commas(run.config.num_parameters()),
           with_commas(run.config.num_active_parameters()), run.schedule.total_steps, run.batch,
           run.seq);
  TrainDisplay display;
  const train::RunOutcome outcome = train::run_training(
      engine.context(), run, {.lock = lock, .initial = *initial, .split = split},
      display.hooks(run.schedule.total_steps));
  display.finish();
  print_outcome(options, outcome);
  if (outcome.finished) return kDone;
  return interrupted_code();
}

int run_train(TrainOptions options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  outlive_readers();
  const InterruptScope interrupt;
  try {
    return train_run(options);
  } catch (const DataInterrupted&) {
    log_info("stopped before the first step: nothing was lost");
    return interrupted_code();
  }
}

void add_what_flags(CommandLine& command, TrainOptions& o) {
  command.option("--config", o.config, "config.json of the model; default: that of --init")
      .type("FILE");
  command.option("--data", o.data, "text, JSONL, or either as .zst").required().type("FILE");
  command.option("-o,--out", o.run.out, "the run: checkpoints, metrics, token cache")
      .required()
      .type("RUN");
  command
      .option("--tokenizer", o.tokenizer,
              "tokenizer.json or its folder; default: that of --init, else one is trained")
      .type("FILE");
  command.option("--init", o.init, "start from this model; default: random weights")
      .check([](const std::string& path) {  // a run that goes on does without it
        return std::filesystem::exists(path) ? fault_of_model(path) : "";
      })
      .type("MODEL");
  command
      .option("--train", o.run.patterns,
              "train only tensors whose names match, such as '*.experts.3.*'; the others "
              "stay as they are")
      .type("PATTERN");
  command
      .option("--separator", o.separator, "ends a document of a text file; default: <|endoftext|>")
      .type("TEXT");
  command.option("--cache", o.cache, "folder for token shards; default: RUN/cache").type("DIR");
  command.option("--valid-fraction", o.valid_fraction, "share of the data held out")
      .range(0.0, 0.9)
      .show_default();
}

void add_step_flags(CommandLine& command, TrainOptions& o) {
  o.run.batch = 32;
  o.run.micro_batch = 0;
  o.run.schedule.max_lr = -1;
  command
      .option("--steps", o.run.schedule.total_steps,
              "updates; default: one pass over the data, at least 100")
      .at_least(1);
  command.option("--batch", o.run.batch, "rows per step").at_least(1).show_default();
  command.option("--seq", o.run.seq, "tokens per row; default: the model's, at most 1024")
      .at_least(1);
  command
      .option("--micro-batch", o.run.micro_batch,
              "rows at a time: memory, not results; default: about 4096 tokens, on a GPU 32768")
      .at_least(1);
  command
      .option("--lr", o.run.schedule.max_lr,
              fmt::format("largest learning rate; default: {}, with --init {}", kLrOfRandomWeights,
                          kLrOfTrainedWeights))
      .range(0.0, 1.0);
  command.option("--schedule", o.schedule, "paper, cosine or constant").show_default();
  command
      .option("--warmup", o.warmup,
              "steps of linear warm-up; default: a twentieth of all, at most 2000")
      .at_least(0);
  command
      .option("--weight-decay", o.run.optimizer.weight_decay,
              "decoupled, of AdamW; none on norms and biases")
      .range(0.0, 1e6)
      .show_default();
  command.option("--clip", o.run.optimizer.clip, "largest norm of the gradient; 0: none")
      .range(0.0, 1e30)
      .show_default();
  command.option("--bias-rate", o.run.optimizer.bias_rate, "step of e_score_correction_bias")
      .range(0.0, 1e6)
      .show_default();
  command.option("--z-loss", o.run.z_alpha, "weight of the router z-loss")
      .range(0.0, 1e6)
      .show_default();
  command.option("--device-loss", o.run.device_alpha, "weight of the device-level balance loss")
      .range(0.0, 1e6)
      .show_default();
  command.option("--devices", o.run.num_devices, "groups of experts of the device-level loss")
      .at_least(1)
      .show_default();
  command
      .option("--balance-group", o.run.balance_group,
              "rows of one balance loss when seq_aux is false; default: about 4096 tokens")
      .at_least(1);
  command.option("--seed", o.run.seed, "seed of weights, split and order").show_default();
  command.flag("--recompute", o.recompute, "less memory, more time, the same result");
}

void add_keep_flags(CommandLine& command, TrainOptions& o) {
  command
      .option("--save-every", o.save_every,
              "steps between checkpoints; 0: only at the end; default: a tenth of all")
      .at_least(0);
  command.option("--keep", o.run.retention.last, "newest checkpoints kept")
      .at_least(1)
      .show_default();
  command
      .option("--keep-every", o.run.retention.every, "also keep the checkpoints of every N-th step")
      .at_least(0);
  command
      .option("--valid-every", o.valid_every,
              "steps between validations; 0: only at the end; default: a twentieth of all")
      .at_least(0);
  command.option("--valid-rows", o.run.valid_rows, "rows of one validation, at most")
      .at_least(0)
      .show_default();
  command.flag("--resume", o.run.resume, "go on from the newest checkpoint that verifies");
}

}  // namespace

void add_train(CommandLine& app) {
  auto options = std::make_shared<TrainOptions>();
  CommandLine command = app.command("train", "Train a model on text, or go on training one");
  add_what_flags(command, *options);
  add_step_flags(command, *options);
  add_keep_flags(command, *options);
  add_output_flags(command, options->common);
  add_machine_flags(command, options->common);
  add_dtype_flag(command, options->common);
  command.footer(
      "Checkpoints RUN/step-00000100 are model folders. Weights do not depend on --threads,\n"
      "--micro-batch, --recompute or interruptions: ctrl-c finishes the step, saves and stops;\n"
      "the same command with --resume goes on. docs/training.md has the rest.\n\n"
      "Examples:\n  dsmoe train --config configs/small.json --data corpus.txt --out run\n"
      "  dsmoe train --init my-model --data chats.jsonl --out tuned \\\n"
      "    --train '*.experts.*' --lr 1e-4");
  command.runs([options] { return run_train(*options); });
}

}  // namespace dsmoe::app
