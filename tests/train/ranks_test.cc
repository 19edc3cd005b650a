// Ranks: the same files after 20 steps, whatever the number of ranks and how they share experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/scratch_folder.h"
#include "tiny_run.h"

namespace dsmoe::testing {
namespace {

using tensor::DType;
using Files = std::map<std::string, std::string>;

struct Shape {
  int64_t expert_ranks, replicas;
};

// Every kind of sum needs all of its shards: 16 dense, 4 of the experts, unless said otherwise.
TinyRun run_of(const model::ModelConfig& config, const Shape& shape) {
  TinyRun run{.config = config};
  run.ranks = static_cast<int>(shape.expert_ranks * shape.replicas);
  run.expert_ranks = shape.expert_ranks;
  run.shards = 16;
  run.expert_shards = 4;
  return run;
}

// What a run leaves: its files, and what it said of every step.
struct Trained {
  Files files;
  std::vector<double> losses, norms;
};

Trained trained(TinyRun run) {
  ScratchFolder out;
  Trained result;
  run.hooks.on_step = [&](const train::StepMetrics&, const train::StepResult& step) {
    result.losses.push_back(step.language);
    result.norms.push_back(step.gradient_norm);
  };
  const train::RunOutcome outcome = run_tiny(run, out / "run");
  EXPECT_TRUE(outcome.finished);
  result.files = files_of(outcome.checkpoint);
  return result;
}

std::string name_of(const Shape& shape) {
  return std::to_string(shape.expert_ranks) + " x " + std::to_string(shape.replicas);
}

// What differs, by name; empty: nothing.
std::string difference(const Trained& a, const Trained& b) {
  for (const auto& [name, bytes] : a.files) {
    if (name == "MANIFEST.json") continue;  // of the others' hashes
    if (!b.files.contains(name) || b.files.at(name) != bytes) return name;
  }
  if (a.files.size() != b.files.size()) return "number of files";
  if (a.losses != b.losses) return "losses";
  return a.norms == b.norms ? "" : "norms";
}

const std::vector<Shape> kAllShapes = {{1, 2}, {1, 4}, {2, 1}, {2, 2},
                                       {2, 4}, {4, 1}, {4, 2}, {4, 4}};

struct Kind {
  std::string name;
  model::ModelConfig config;
  std::vector<Shape> shapes = kAllShapes;
  int64_t batch = 8, micro_batch = 4, balance_group = 0;
  model::Recompute recompute = model::Recompute::nothing;
  std::vector<float> selection_bias = {};
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

model::ModelConfig experts_of(model::ModelConfig config, int64_t experts) {
  config.n_routed_experts = experts;
  config.n_group = config.topk_group = 1;
  config.check("experts");
  return config;
}

// All tokens take the first two of eight experts: one rank has all rows, the last experts none.
const std::vector<float> kCrowded = {100, 100, 0, 0, 0, 0, 0, -100};

model::ModelConfig balanced_over_rows(model::ModelConfig config) {
  config.seq_aux = false;
  return config;
}

class Ranks : public ::testing::TestWithParam<Kind> {
 protected:
  TinyRun run(const Shape& shape) const {
    const Kind& kind = GetParam();
    TinyRun run = run_of(kind.config, shape);
    run.batch = kind.batch;
    run.micro_batch = kind.micro_batch;
    run.balance_group = kind.balance_group;
    run.recompute = kind.recompute;
    run.selection_bias = kind.selection_bias;
    return run;
  }
};

TEST_P(Ranks, GiveTheBitsOfOne) {
  const Trained expected = trained(run({1, 1}));
  for (const Shape& shape : GetParam().shapes)
    EXPECT_EQ(difference(expected, trained(run(shape))), "") << name_of(shape);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Ranks,
    ::testing::Values(Kind{.name = "fp32", .config = tiny_config(DType::F32)},
                      Kind{.name = "v3_bf16", .config = tiny_v3_config(DType::BF16)},
                      // Ranks without rows; an uneven share of experts.
                      Kind{.name = "fifteen_experts",
                           .config = experts_of(tiny_v3_config(DType::F32), 15),
                           .shapes = {{1, 4}, {2, 2}, {4, 1}, {4, 2}},
                           .batch = 6,
                           .micro_batch = 3},
                      Kind{.name = "all_on_one_rank",
                           .config = experts_of(tiny_v3_config(DType::BF16), 8),
                           .shapes = {{2, 2}, {4, 1}, {4, 2}},
                           .selection_bias = kCrowded},
                      Kind{.name = "balance_over_rows",
                           .config = balanced_over_rows(tiny_config(DType::BF16)),
                           .shapes = {{1, 2}, {2, 1}, {2, 2}},
                           .batch = 16,
                           .micro_batch = 8,
                           .balance_group = 2},
                      Kind{.name = "recomputation",
                           .config = tiny_config(DType::BF16),
                           .shapes = {{1, 2}, {2, 1}, {2, 2}},
                           .recompute = model::Recompute::blocks}),
    [](const auto& test) { return test.param.name; });

// What the defaults of a first start give: one buffer each, whole micro-batches.
TEST(RanksByDefault, GiveTheBitsOfOneWithTheirShards) {
  const model::ModelConfig config = tiny_v3_config(DType::BF16);
  for (const Shape shape : {Shape{1, 2}, Shape{2, 1}, Shape{2, 2}}) {
    TinyRun run = run_of(config, shape);
    run.shards = run.ranks;
    run.expert_shards = shape.replicas;
    const Trained own = trained(run);
    run.ranks = 1;
    run.expert_ranks = 1;
    EXPECT_EQ(difference(own, trained(run)), "") << name_of(shape);
  }
}

// One shard is what a run without ranks has.
TEST(RanksByDefault, OneShardIsAPlainRun) {
  TinyRun plain{.config = tiny_config(DType::F32)};
  const Trained expected = trained(plain);
  plain.shards = 2;
  EXPECT_EQ(difference(expected, trained(plain)), "model.safetensors");  // not blind
}

// Any layout goes on from any other.
TEST(RanksResume, AtAnotherLayout) {
  const model::ModelConfig config = tiny_v3_config(DType::BF16);
  const Trained expected = trained(run_of(config, {1, 1}));
  const Shape ways[][2] = {{{2, 2}, {1, 1}}, {{1, 1}, {4, 1}}, {{1, 4}, {2, 1}}};
  for (const auto& [first, second] : ways) {
    ScratchFolder out;
    TinyRun run = run_of(config, first);
    run.stop_after = 7;
    EXPECT_FALSE(run_tiny(run, out / "run").finished);
    run = run_of(config, second);
    run.resume = true;
    const train::RunOutcome outcome = run_tiny(run, out / "run");
    EXPECT_TRUE(outcome.finished);
    EXPECT_TRUE(files_of(outcome.checkpoint) == expected.files)
        << name_of(first) << " then " << name_of(second);
  }
}

TEST(RanksResume, AnotherNumberOfShardsIsRefused) {
  ScratchFolder out;
  TinyRun run = run_of(tiny_config(DType::F32), {1, 2});
  run.stop_after = 1;
  run_tiny(run, out / "run");
  run.resume = true;
  run.shards = 8;
  EXPECT_THROW(run_tiny(run, out / "run"), Error);
}

// Another group under its own name, with a fault done to what comes: the faults that others had.
class Faulty : public comm::Group {
 public:
  enum class Fault {
    none,
    router_gradient_scaled,   // the loss is right, the router's gradient is not
    router_detached,          // no gradient reaches the router through the gates
    dense_contribution_lost,  // what another rank adds to a gradient
    doubled,                  // every gradient twice
    norm_without_experts,     // parts of the norm of another rank's experts
    norm_of_own_data          // every rank takes its own parts for those of all
  };
  Faulty(comm::Group& inner, Fault fault)
      : Group(inner.rank(), inner.size()), inner_(inner), fault_(fault) {}

 private:
  template <class T>
  static std::span<T> numbers(const comm::Room& room) {
    return {reinterpret_cast<T*>(room.data()), room.size() / sizeof(T)};
  }
  static void scale(std::span<const comm::Room> rooms, float factor) {
    for (const comm::Room& room : rooms)
      for (float& value : numbers<float>(room)) value *= factor;
  }

  void move(std::string_view what, std::span<const comm::Bytes> send,
            std::span<const comm::Room> receive) override {
    inner_.exchange(what, send, receive);
    const bool is_gate_gradient = gates_went_ && what == "experts' rows come back";
    gates_went_ = what == "rows to their experts" || (gates_went_ && !is_gate_gradient);
    const bool is_gradient = what == "gradients to those who update";
    const bool is_norm = what == "parts of the gradient's norm";
    const std::size_t other = rank() == 0 ? 1 : 0;
    if (fault_ == Fault::router_gradient_scaled && is_gate_gradient) scale(receive, 0.5f);
    if (fault_ == Fault::router_detached && is_gate_gradient) scale(receive, 0);
    if (fault_ == Fault::dense_contribution_lost && is_gradient)
      scale(receive.subspan(other, 1), 0);
    if (fault_ == Fault::doubled && is_gradient) scale(receive, 2);
    if (fault_ == Fault::norm_without_experts && is_norm) {
      // The last rank's slices are mostly of experts.
      for (double& part : numbers<double>(receive.back())) part = 0;
    }
    if (fault_ == Fault::norm_of_own_data && is_norm) {
      const auto own = numbers<double>(receive[static_cast<std::size_t>(rank())]);
      for (const comm::Room& room : receive) {
        const auto parts = numbers<double>(room);
        for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = own[i % own.size()];
      }
    }
  }

  comm::Group& inner_;
  Fault fault_;
  bool gates_went_ = false;
};

Trained trained_with(Faulty::Fault fault) {
  TinyRun run = run_of(tiny_config(DType::F32), {2, 2});
  run.wrap = [fault](comm::Group& group) { return std::make_unique<Faulty>(group, fault); };
  return trained(run);
}

TEST(RanksControl, EveryFaultIsSeen) {
  using enum Faulty::Fault;
  const Trained expected = trained(run_of(tiny_config(DType::F32), {1, 1}));
  EXPECT_EQ(difference(expected, trained_with(none)), "");
  for (const Faulty::Fault fault :
       {router_gradient_scaled, router_detached, dense_contribution_lost, doubled,
        norm_without_experts, norm_of_own_data}) {
    const Trained wrong = trained_with(fault);
    EXPECT_NE(difference(expected, wrong), "") << static_cast<int>(fault);
    // None of them shows in the loss of the first step.
    EXPECT_EQ(expected.losses.front(), wrong.losses.front()) << static_cast<int>(fault);
  }
}

// An expert without a token keeps decaying. Left out, it does not, and nothing else changes.
TEST(RanksControl, IdleExpertsDecay) {
  TinyRun run = run_of(experts_of(tiny_v3_config(DType::F32), 8), {2, 1});
  run.selection_bias = kCrowded;
  run.steps = 3;
  const Trained expected = trained(run);
  run.patterns = {"*embed*", "*norm*", "*self_attn*", "*.gate.*", "*shared*", "*experts.[0-6].*"};
  const Trained without = trained(run);
  EXPECT_EQ(expected.norms, without.norms);
  EXPECT_NE(expected.files.at("model.safetensors"), without.files.at("model.safetensors"));
  run.change = [](train::RunOptions& options) { options.optimizer.weight_decay = 0; };
  const Trained undecayed = trained(run);
  run.patterns = {};
  EXPECT_EQ(undecayed.files.at("model.safetensors"), trained(run).files.at("model.safetensors"));
}

}  // namespace
}  // namespace dsmoe::testing
