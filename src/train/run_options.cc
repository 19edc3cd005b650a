// What a run is told: its identity, its rows, its layout; and what cannot be.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/sha256.h"
#include "model/config_words.h"
#include "train/run.h"
#include "train/run_identity.h"

namespace dsmoe::train {
namespace {

RunIdentity plain_identity_of(const RunOptions& o, const Json& patterns) {
  return {.fixed = {{"config", sha256(model::own_words(o.config).dump())},
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

}  // namespace

RunIdentity identity_of(const RunOptions& o) {
  Json patterns = Json::array();
  for (const std::string& pattern : o.patterns) patterns.push_back(pattern);
  RunIdentity identity = plain_identity_of(o, patterns);
  // One shard is what runs without ranks have, also those of earlier programs.
  if (o.shards > 1) identity.fixed["shards"] = o.shards;
  if (o.expert_shards > 1) identity.fixed["expert_shards"] = o.expert_shards;
  return identity;
}

OrderedJson recipe_of(const RunOptions& options) {
  const RunIdentity identity = identity_of(options);
  OrderedJson recipe = nlohmann::ordered_json::object();
  for (const Json* part : {&identity.plan, &identity.fixed}) {
    for (const auto& [key, value] : part->items()) {
      if (key != "config") recipe[key] = value;  // a hash; run.json holds the config itself
    }
  }
  recipe["dtype"] = options.config.torch_dtype == tensor::DType::F32 ? "fp32" : "bf16";
  recipe["micro_batch"] = options.micro_batch;
  recipe["recompute"] = options.recompute == model::Recompute::blocks;
  recipe["parameters"] = options.config.num_parameters();
  recipe["active_parameters"] = options.config.num_active_parameters();
  return recipe;
}

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
  return group * rows_of_about(options.batch / group, options.seq, tokens / group);
}

void check_rows(const RunOptions& o) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) fail(ErrorKind::usage, "--{} {}: expected at least 1", name, value);
  };
  positive("batch", o.batch);
  positive("micro-batch", o.micro_batch);
  positive("seq", o.seq);
  model::check_context(o.config, o.seq);
  constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();  // positions are I32
  if (o.micro_batch > kMostTokens / o.seq) {
    fail(ErrorKind::usage, "--micro-batch {} of {} tokens each: at most {} tokens are possible",
         o.micro_batch, o.seq, kMostTokens);
  }
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

RankLayout layout_of(const RunOptions& options, int64_t rank, int64_t ranks) {
  const RankLayout layout{.rank = rank,
                          .ranks = ranks,
                          .expert_ranks = options.expert_ranks,
                          .shards = options.shards,
                          .expert_shards = options.expert_shards};
  check_layout(layout, options.config.n_routed_experts);
  return layout;
}

void check_start(const RunOptions& options) {
  if (!options.resume && store::has_checkpoints(options.out)) {
    fail(ErrorKind::input,
         "{}: already holds checkpoints; add --resume to go on from them, or choose "
         "another --out",
         options.out.string());
  }
}

}  // namespace dsmoe::train
