// Flags of dsmoe train.
#include "commands/train_options.h"

#include <filesystem>

namespace dsmoe::app {
namespace {

void add_what_flags(CommandLine& command, TrainOptions& o) {
  command.option("--config", o.config, "config.json of the model; default: that of --init")
      .replace([](const std::string& path) { return chosen_holder(path, "config.json"); })
      .type("FILE");
  command
      .option("--data", o.data,
              "text, JSONL, either as .zst, or folders of these; FILE:0.7 gives a source its share "
              "of the rows, then all need one")
      .type("FILE");
  command.option("-o,--out", o.run.out, "the run: checkpoints, metrics, token cache").type("RUN");
  command
      .option("--tokenizer", o.tokenizer,
              "tokenizer.json or its folder; default: that of --init, else one is trained")
      .replace([](const std::string& path) { return chosen_holder(path, "tokenizer.json"); })
      .type("FILE");
  command.option("--init", o.init, "start from this model; default: random weights")
      .replace([](const std::string& path) {  // a run that goes on does without it
        return std::filesystem::exists(path) ? chosen_model(path) : Replaced{.value = path};
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
}

void add_data_flags(CommandLine& command, TrainOptions& o) {
  command.option("--text-key", o.keys.text, "key of a text in JSONL; default: text").type("KEY");
  command.option("--prompt-key", o.keys.prompt, "key of a prompt; default: prompt").type("KEY");
  command.option("--completion-key", o.keys.completion, "of its completion; default: completion")
      .type("KEY");
  command.option("--messages-key", o.keys.messages, "of a conversation; default: messages")
      .type("KEY");
  command
      .option("--valid-data", o.valid_data,
              "files to validate on; default: a part of --data is held out")
      .type("FILE");
  command
      .option("--valid-fraction", o.valid_fraction,
              "share of --data held out; default: 0.05, with --valid-data 0")
      .range(0.0, 0.9);
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

void add_rank_flags(CommandLine& command, TrainOptions& o) {
  o.run.shards = o.run.expert_shards = 0;
  command
      .option("--ranks", o.ranks,
              "that share the run; started by mpirun or srun, their number is known")
      .range(int64_t{1}, int64_t{4096})
      .show_default();
  command
      .option("--transport", o.transport,
              "what --ranks starts: threads of this process, or processes through mpirun")
      .one_of({"threads", "mpi"})
      .show_default();
  command
      .option("--expert-parallel", o.run.expert_ranks,
              "ranks that share the experts; the others hold replicas of them")
      .at_least(1)
      .show_default();
  command
      .option("--shards", o.run.shards,
              "in which gradients are summed: --ranks has to divide it, and the result depends on "
              "it; default: the ranks of the first start")
      .at_least(1);
  command
      .option("--expert-shards", o.run.expert_shards,
              "the same of the routed experts' gradients; default: --ranks / --expert-parallel of "
              "the first start")
      .at_least(1);
}

void add_keep_flags(CommandLine& command, TrainOptions& o) {
  command
      .option(
          "--save-every", o.save_every,
          "steps between checkpoints; 0: only at the end; default: a tenth of all, in at most a "
          "twentieth of the time")
      .at_least(0);
  command.option("--keep", o.run.retention.last, "newest checkpoints kept")
      .at_least(1)
      .show_default();
  command
      .option("--keep-every", o.run.retention.every, "also keep the checkpoints of every N-th step")
      .at_least(0);
  command
      .option(
          "--valid-every", o.valid_every,
          "steps between validations; 0: only at the end; default: a twentieth of all, in at most "
          "a twentieth of the time")
      .at_least(0);
  command.option("--valid-rows", o.run.valid_rows, "rows of one validation, at most")
      .at_least(0)
      .show_default();
  command.flag("--keep-best", o.run.keep_best,
               "save and keep the checkpoint of the lowest validation loss");
  command
      .option("--patience", o.run.patience,
              "end after so many validations without a lower loss; 0: never")
      .at_least(0)
      .show_default();
  command
      .option("--eval-pairs", o.eval_pairs,
              "JSON lines as dsmoe eval --pairs takes them, measured with every validation")
      .type("FILE");
  command
      .option("--resume", o.resume,
              "go on from the newest checkpoint of RUN that verifies, with what RUN/run.json says; "
              "default: the run of --out")
      .value_optional(kResumeOut)
      .type("RUN");
}

}  // namespace

void add_train_flags(CommandLine& command, TrainOptions& options) {
  add_what_flags(command, options);
  add_data_flags(command, options);
  add_step_flags(command, options);
  add_rank_flags(command, options);
  add_keep_flags(command, options);
  add_output_flags(command, options.common);
  add_machine_flags(command, options.common);
  add_dtype_flag(command, options.common);
}

}  // namespace dsmoe::app
