// Every op, every case, every tier that runs here: parity with ref, batch invariance, bounds,
// support.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/rng.h"
#include "kernels/matmul.h"
#include "kernels/memory.h"
#include "kernels/optimizer.h"
#include "ops/controls.h"
#include "ops/op_case.h"

namespace dsmoe::ops {
namespace {

std::vector<const kernels::KernelTable*> tables_that_run() {
  std::vector<const kernels::KernelTable*> tables;
  for (const kernels::Candidate& candidate : kernels::cpu_candidates()) {
    if (candidate.table == nullptr || !candidate.declined.empty()) continue;
    tables.push_back(candidate.table);
    if (std::getenv("DSMOE_QUICK") != nullptr) break;  // the best tier alone
  }
  return tables;
}

class Op : public testing::TestWithParam<OpEntry> {};

std::string name_of_case(const testing::TestParamInfo<OpEntry>& info) {
  return info.param.op + "_" + info.param.name;
}

TEST_P(Op, Parity) {
  for (const DType operand : {DType::BF16, DType::F32}) {
    const RefResult ref(GetParam(), operand);
    for (const kernels::KernelTable* table : tables_that_run()) {
      const int most_threads = table == &kernels::ref_table() ? 1 : 3;  // ref takes one
      for (int threads = 1; threads <= most_threads; ++threads) {
        EXPECT_EQ(ref.difference(*table, threads), "");
      }
    }
  }
}

TEST_P(Op, BatchInvariance) {
  for (const kernels::KernelTable* table : tables_that_run()) {
    for (const DType operand : {DType::BF16, DType::F32}) {
      EXPECT_EQ(batch_dependence(GetParam(), *table, operand), "");
    }
  }
}

TEST_P(Op, Bounds) {
  for (const DType operand : {DType::BF16, DType::F32})
    EXPECT_EQ(outside_bound(GetParam(), operand), "");
}

INSTANTIATE_TEST_SUITE_P(Ops, Op, testing::ValuesIn(all_cases()), name_of_case);

// Each control breaks one rule; the body that passes every tier must tell it from ref.
class Control : public testing::TestWithParam<BrokenRule> {};

TEST_P(Control, IsToldApart) {
  const BrokenRule& control = GetParam();
  std::string found;
  for (const OpEntry& entry : all_cases()) {
    if (entry.op != control.op) continue;
    switch (control.found_by) {
      case FoundBy::parity:
        found += RefResult(entry, control.operand).difference(control.table, 1);
        break;
      case FoundBy::threads: {
        const RefResult ref(entry, control.operand);
        EXPECT_EQ(ref.difference(control.table, 1), "") << "broken with one thread already";
        found += ref.difference(control.table, 3);
        break;
      }
      case FoundBy::batch:
        found += batch_dependence(entry, control.table, control.operand);
        break;
    }
  }
  EXPECT_NE(found, "") << control.name << " went unnoticed";
}

INSTANTIATE_TEST_SUITE_P(Ops, Control, testing::ValuesIn(broken_rules()),
                         [](const auto& control) { return control.param.name; });

// One line per tier in the report: run here, or skipped and why.
class Tier : public testing::TestWithParam<std::string> {};

TEST_P(Tier, ProductsEqualRef) {
  for (const kernels::Candidate& candidate : kernels::cpu_candidates()) {
    if (candidate.name != GetParam()) continue;
    if (!candidate.declined.empty()) GTEST_SKIP() << candidate.declined;
    for (const OpEntry& entry : all_cases()) {
      if (!entry.op.starts_with("matmul") && !entry.op.starts_with("experts_up")) continue;
      EXPECT_EQ(RefResult(entry, DType::BF16).difference(*candidate.table, 2), "");
    }
    return;
  }
  FAIL() << "no candidate of that name";
}

INSTANTIATE_TEST_SUITE_P(Ops, Tier, testing::Values("amx", "v4_bf16", "v4", "v3"),
                         [](const auto& tier) { return tier.param; });

// AdamW that rounds and clears in the same pass against the three ops apart.
TEST(Adamw, OnePassEqualsThree) {
  constexpr int64_t kSize = 50'021;
  for (const kernels::KernelTable* table : tables_that_run()) {
    ThreadPool pool(2);
    const kernels::Context context{.table = table, .pool = &pool};
    std::vector<std::vector<float>> tensors[2];
    std::vector<uint16_t> rounded[2];
    for (const bool one_pass : {false, true}) {
      std::vector<std::vector<float>>& values = tensors[one_pass];
      const Rng rng{.seed = 4, .purpose = RngPurpose::test};
      for (uint64_t stream = 0; stream < 4; ++stream) {
        values.emplace_back(kSize);
        for (uint64_t i = 0; i < kSize; ++i)
          values.back()[i] = rng.uniform_f32(stream * kSize + i) - (stream == 3 ? 0.0f : 0.5f);
      }
      rounded[one_pass].resize(kSize);
      const auto view = [&](std::vector<float>& data) {
        return TensorView{.data = data.data(), .dtype = DType::F32, .shape = {kSize}};
      };
      const TensorView bf16{
          .data = rounded[one_pass].data(), .dtype = DType::BF16, .shape = {kSize}};
      kernels::AdamwStep step{.weight = view(values[0]),
                              .gradient = view(values[1]),
                              .first_moment = view(values[2]),
                              .second_moment = view(values[3]),
                              .lr = 0.01f,
                              .clear_gradient = one_pass};
      if (one_pass) step.rounded = bf16;
      kernels::adamw_step(context, step);
      if (one_pass) continue;
      kernels::round_values(context, {.x = step.weight, .out = bf16});
      kernels::zero(context, step.gradient.data, step.gradient.num_bytes());
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::memcmp(tensors[0][i].data(), tensors[1][i].data(), kSize * sizeof(float)), 0)
          << table->name << ", tensor " << i;
    }
    EXPECT_EQ(rounded[0], rounded[1]) << table->name;
  }
}

// What input gradients read on a device: the weight itself, by columns.
TEST(Transposes, GiveTheBitsOfTransposedCopies) {
  constexpr int64_t kRows = 3, kN = 70, kK = 45;
  std::vector<float> stored(kK * kN), x(kRows * kK), copy(kN * kK), out[3];
  const Rng rng{.seed = 11, .purpose = RngPurpose::test};
  rng.fill_normal(0, stored);
  rng.fill_normal(stored.size(), x);
  const kernels::WeightStack weight{.data = stored.data(), .count = 1, .n = kK, .k = kN};
  const kernels::WeightStack by_columns = transpose_of(weight);
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k)
      copy[static_cast<std::size_t>(n * kK + k)] =
          stored[static_cast<std::size_t>(by_columns.index(n, k))];
  }
  const kernels::WeightStack copied{.data = copy.data(), .count = 1, .n = kN, .k = kK};
  kernels::WeightStack wrong = copied;
  wrong.data = stored.data();
  const kernels::WeightStack* const weights[] = {&by_columns, &copied, &wrong};
  for (int i = 0; i < 3; ++i) {
    out[i].resize(kRows * kN);
    kernels::matmul_forward(
        {.table = &kernels::ref_table()},
        {.x = {.data = x.data(), .dtype = kernels::DType::F32, .shape = {kRows, kK}},
         .weight = *weights[i],
         .out = {.data = out[i].data(), .dtype = kernels::DType::F32, .shape = {kRows, kN}}});
  }
  EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)), 0);
  EXPECT_NE(std::memcmp(out[0].data(), out[2].data(), out[0].size() * sizeof(float)), 0);
}

TEST(Support, TiersImplementEveryOpThatTakesTime) {
#define DSMOE_NAME(name, Arguments) #name,
  const std::vector<std::string> all{DSMOE_OPS_OF_TIERS(DSMOE_NAME)
                                         DSMOE_OPS_OF_CPU_TIERS(DSMOE_NAME)};
#undef DSMOE_NAME
  for (const kernels::Candidate& candidate : kernels::cpu_candidates()) {
    if (candidate.table == nullptr || candidate.name == "ref") continue;
    EXPECT_EQ(own_ops(*candidate.table), all) << candidate.name;
  }
  EXPECT_TRUE(own_ops(kernels::ref_table()).empty());
}

TEST(Select, TakesTheFirstThatRunsOrTheOneNamed) {
  unsetenv("DSMOE_ISA");
  EXPECT_EQ(&kernels::select_cpu_table(), tables_that_run().front());
  setenv("DSMOE_ISA", "ref", 1);
  EXPECT_EQ(&kernels::select_cpu_table(), &kernels::ref_table());
  setenv("DSMOE_ISA", "v9", 1);
  try {
    kernels::select_cpu_table();
    ADD_FAILURE() << "an unknown tier was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("known tiers: "), std::string::npos) << error.what();
  }
  unsetenv("DSMOE_ISA");
}

}  // namespace
}  // namespace dsmoe::ops
