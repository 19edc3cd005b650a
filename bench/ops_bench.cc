// Products of the DeepSeek-MoE-16B shape, bf16, int8 and int4 weights: time, GB/s of weights,
// GFLOP/s, beside what the machine can do.
// ops_bench [threads] [tier] [part of a line's name] [seconds of a line]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>
#include <string>

#include "base/rng.h"
#include "kernels/cpu/machine_limits.h"
#include "kernels/ops.h"
#include "kernels/table.h"
#include "tensor/arena.h"

namespace dsmoe::bench {
namespace {

using namespace kernels;
using kernels::cpu::now;

constexpr int64_t kHidden = 2048, kWidth = 1408, kExperts = 64, kTopK = 6, kShared = 2;

struct Limits {
  double bandwidth, flops;
};

std::string wanted;  // part of a line's name
double seconds_of_line = 1;

std::string with_coding(const char* name, WeightCoding coding) {
  return fmt::format("{} {}", name,
                     coding == WeightCoding::plain ? "bf16" : tensor::name_of(coding));
}

constexpr WeightCoding kCodings[] = {WeightCoding::plain, WeightCoding::int8, WeightCoding::int4};
constexpr int64_t kRows[] = {1, 2, 4, 8, 16, 64, 512};

// Cheap numbers of ordinary size: bf16 with exponents near zero.
void fill_bf16(void* data, int64_t count, uint64_t seed) {
  auto* out = static_cast<uint16_t*>(data);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<uint16_t>(0x3c00u | ((state >> 40) & 0x81ffu));
  }
}

// Any integers, scales as dsmoe quantize chooses them.
void fill_integers(const WeightStack& stack) {
  fill_bf16(stack.data, static_cast<int64_t>(stack.num_bytes() / 2), 7);
  const int64_t group = coded_group_bytes(stack.coding);
  for (std::size_t at = 0; at < stack.num_bytes(); at += static_cast<std::size_t>(group)) {
    std::fill_n(reinterpret_cast<uint16_t*>(static_cast<char*>(stack.data) + at), kPanelWidth,
                static_cast<uint16_t>(stack.coding == WeightCoding::int8 ? 0x3c00 : 0x3c20));
  }
}

// Weights that calls visit in turn: so many that none finds its own in a cache, also where the
// third level has hundreds of megabytes.
constexpr double kVisitedBytes = 2e9;
int64_t copies_of(double bytes) {
  return std::max(int64_t{1}, static_cast<int64_t>(std::ceil(kVisitedBytes / bytes)));
}

WeightStack make_weights(tensor::Arena& arena, int64_t count, int64_t n, int64_t k,
                         WeightCoding coding) {
  WeightStack stack{.dtype = DType::BF16,
                    .layout = WeightLayout::panels,
                    .count = count,
                    .n = n,
                    .k = k,
                    .coding = coding};
  stack.data = arena.bytes("weights", stack.num_bytes());
  if (coding == WeightCoding::plain) {
    fill_bf16(stack.data, static_cast<int64_t>(stack.num_bytes() / 2),
              static_cast<uint64_t>(n + k));
  } else {
    fill_integers(stack);
  }
  return stack;
}

// The same numbers at another place.
WeightStack copy_of(tensor::Arena& arena, WeightStack stack) {
  const void* from = stack.data;
  stack.data = arena.bytes("weights", stack.num_bytes());
  std::memcpy(stack.data, from, stack.num_bytes());
  return stack;
}

TensorView make_rows(tensor::Arena& arena, int64_t rows, int64_t size) {
  const TensorView view = arena.tensor("rows", DType::BF16, {rows, size});
  fill_bf16(view.data, rows * size, static_cast<uint64_t>(rows));
  return view;
}

// Calls f(i) for a while; prints the median.
template <class F>
void report(const Context& context, const std::string& name, int64_t rows, double bytes,
            double flops, const Limits& limits, F&& f) {
  if (name.find(wanted) == std::string::npos) return;
  std::vector<double> seconds;
  f(0);
  const double end = now(*context.pool) + seconds_of_line;
  for (int i = 1; now(*context.pool) < end || seconds.size() < 3; ++i) {
    const double start = now(*context.pool);
    f(i);
    seconds.push_back(now(*context.pool) - start);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  fmt::print("{:<22} {:>5} {:>10.3f} ms {:>8.1f} GB/s {:>4.0f} % {:>9.1f} GFLOP/s {:>4.0f} %\n",
             name, rows, median * 1e3, bytes / median / 1e9,
             100 * bytes / median / limits.bandwidth, flops / median / 1e9,
             100 * flops / median / limits.flops);
}

void bench_matmul(const Context& context, const Limits& limits, const char* shape, int64_t n,
                  int64_t k, WeightCoding coding) {
  const std::string name = with_coding(shape, coding);
  if (name.find(wanted) == std::string::npos) return;
  tensor::Arena arena("bench");
  const auto bytes =
      static_cast<double>(panel_bytes(DType::BF16, coding, k)) * static_cast<double>(n / 16);
  const int64_t copies = copies_of(bytes);
  std::vector<WeightStack> weights{make_weights(arena, 1, n, k, coding)};
  while (static_cast<int64_t>(weights.size()) < copies)
    weights.push_back(copy_of(arena, weights[0]));
  for (const int64_t rows : kRows) {
    const TensorView x = make_rows(arena, rows, k);
    const TensorView out = arena.tensor("out", DType::F32, {rows, n});
    report(context, name, rows, bytes, 2.0 * static_cast<double>(n * k * rows), limits, [&](int i) {
      matmul_forward(context, {.operand = x.dtype,
                               .x = x,
                               .weight = weights[static_cast<std::size_t>(i % copies)],
                               .out = out});
    });
  }
}

// Gate, up and down of some experts.
struct Experts {
  WeightStack gate, up, down;

  void put_into(ExpertFamily& family) const {
    family.gate = gate;
    family.up = up;
    family.down = down;
  }
};
Experts make_experts(tensor::Arena& arena, int64_t count, int64_t width, WeightCoding coding) {
  return {.gate = make_weights(arena, count, width, kHidden, coding),
          .up = make_weights(arena, count, width, kHidden, coding),
          .down = make_weights(arena, count, kHidden, width, coding)};
}
Experts copy_of(tensor::Arena& arena, const Experts& experts) {
  return {.gate = copy_of(arena, experts.gate),
          .up = copy_of(arena, experts.up),
          .down = copy_of(arena, experts.down)};
}

// Experts of several layers: routed through random choices, and the shared ones.
void bench_experts(const Context& context, const Limits& limits, WeightCoding coding) {
  const std::string up_name = with_coding("experts up", coding);
  const std::string down_name = with_coding("experts down", coding);
  if (up_name.find(wanted) == std::string::npos && down_name.find(wanted) == std::string::npos)
    return;
  tensor::Arena arena("bench");
  std::vector<Experts> routed_weights{make_experts(arena, kExperts, kWidth, coding)};
  std::vector<Experts> shared_weights{make_experts(arena, 1, kShared * kWidth, coding)};
  const auto layers = static_cast<std::size_t>(
      copies_of(3 * static_cast<double>(routed_weights[0].gate.num_bytes())));
  while (routed_weights.size() < layers) {
    routed_weights.push_back(copy_of(arena, routed_weights[0]));
    shared_weights.push_back(copy_of(arena, shared_weights[0]));
  }
  ExpertFamily routed, shared;
  constexpr int kChoices = 8;
  for (const int64_t tokens : kRows) {
    const TensorView x = make_rows(arena, tokens, kHidden);
    std::vector<std::vector<ExpertFamily>> choices;
    std::set<int32_t> used;
    for (int choice = 0; choice < kChoices; ++choice) {
      const Rng rng{.seed = 3, .stream = static_cast<uint32_t>(choice)};
      const TensorView index = arena.tensor("index", DType::I32, {tokens, kTopK});
      for (int64_t t = 0; t < tokens; ++t) {
        std::set<int32_t> chosen;
        for (uint64_t draw = 0; chosen.size() < kTopK; ++draw) {
          chosen.insert(
              static_cast<int32_t>(rng.below(static_cast<uint64_t>(t) * 64 + draw, kExperts)));
        }
        std::copy(chosen.begin(), chosen.end(), index.as<int32_t>() + t * kTopK);
        if (choice == 0) used.insert(chosen.begin(), chosen.end());
      }
      const TensorView starts = arena.tensor("starts", DType::I32, {2});
      starts.as<int32_t>()[1] = static_cast<int32_t>(tokens);
      DispatchPlan plan{.expert_offsets = arena.tensor("plan", DType::I32, {kExperts + 1}),
                        .sequence_offsets = arena.tensor("plan", DType::I32, {kExperts, 2}),
                        .token_of_row = arena.tensor("plan", DType::I32, {tokens * kTopK}),
                        .row_of_slot = arena.tensor("plan", DType::I32, {tokens, kTopK})};
      plan_build(context, {.index = index, .sequence_starts = starts, .plan = plan});
      routed.offsets = plan.expert_offsets;
      routed.x = {x, plan.token_of_row};
      routed.activation = arena.tensor("rows", DType::BF16, {tokens * kTopK, kWidth});
      routed.out = arena.tensor("rows", DType::BF16, {tokens * kTopK, kHidden});
      shared.offsets = starts;
      shared.x = {x};
      shared.activation = arena.tensor("rows", DType::BF16, {tokens, kShared * kWidth});
      shared.out = arena.tensor("rows", DType::BF16, {tokens, kHidden});
      choices.push_back({routed, shared});
    }
    // Another layer with every call, another choice with every round.
    const auto families = [&](int i) -> std::span<const ExpertFamily> {
      const auto at = static_cast<std::size_t>(i);
      std::vector<ExpertFamily>& list = choices[at / layers % kChoices];
      routed_weights[at % layers].put_into(list[0]);
      shared_weights[at % layers].put_into(list[1]);
      return list;
    };
    const double matrix = static_cast<double>(kWidth * kHidden);
    const double read = static_cast<double>(routed_weights[0].gate.matrix_bytes()) *
                        (static_cast<double>(used.size()) + kShared);
    const double flops = 2 * matrix * static_cast<double>(tokens * (kTopK + kShared));
    report(context, up_name, tokens, 2 * read, 2 * flops, limits, [&](int i) {
      experts_up_forward(context, {.operand = DType::BF16, .families = families(i)});
    });
    report(context, down_name, tokens, read, flops, limits, [&](int i) {
      experts_down_forward(context, {.operand = DType::BF16, .families = families(i)});
    });
  }
}

void bench_attention(const Context& context, const Limits& limits) {
  constexpr int64_t kHeads = 16, kDim = 128, kKeys = 2048;
  tensor::Arena arena("bench");
  KvPages kv{
      .num_pages = kKeys / kKeyBlock,
      .shape = {.dtype = DType::BF16, .heads = kHeads, .key_width = kDim, .value_width = kDim}};
  kv.keys = arena.bytes("kv", kv.num_bytes());
  kv.values = static_cast<char*>(kv.keys) + kv.num_bytes() / 2;
  fill_bf16(kv.keys, static_cast<int64_t>(kv.num_bytes()) / 2, 5);
  const TensorView table = arena.tensor("table", DType::I32, {1, kv.num_pages});
  for (int32_t page = 0; page < kv.num_pages; ++page) table.as<int32_t>()[page] = page;
  for (const int64_t queries : {1, 8, 64, 512}) {
    TensorView q = make_rows(arena, queries, kHeads * kDim);
    q.shape = {queries, kHeads, kDim};
    const TensorView out = arena.tensor("out", DType::BF16, q.shape);
    const TensorView position = arena.tensor("position", DType::I32, {queries});
    for (int64_t t = 0; t < queries; ++t)
      position.as<int32_t>()[t] = static_cast<int32_t>(kKeys - queries + t);
    const TensorView starts = arena.tensor("starts", DType::I32, {2});
    starts.as<int32_t>()[1] = static_cast<int32_t>(queries);
    report(context, "attention 2048 keys", queries, static_cast<double>(kv.num_bytes()),
           4.0 * static_cast<double>(kKeys * queries * kHeads * kDim), limits, [&](int) {
             attention_forward(context, {.q = q,
                                         .kv = kv,
                                         .q_starts = starts,
                                         .position = position,
                                         .page_table = table,
                                         .scale = 1 / 11.3137f,
                                         .out = out});
           });
  }
}

void bench_pack(const Context& context, const Limits& limits) {
  tensor::Arena arena("bench");
  const WeightStack target = make_weights(arena, 1, 16 * kWidth, kHidden, WeightCoding::plain);
  const TensorView source = make_rows(arena, 16 * kWidth, kHidden);
  report(context, "pack bf16", source.dim(0), static_cast<double>(source.num_bytes()), 0, limits,
         [&](int) { pack_weight(context, {.source = source, .target = target}); });
}

int run(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 0);
  if (argc > 2) setenv("DSMOE_ISA", argv[2], 1);
  if (argc > 3) wanted = argv[3];
  if (argc > 4) seconds_of_line = std::strtod(argv[4], nullptr);
  const KernelTable& table = select_cpu_table();
  const Context context{.table = &table, .pool = &pool};
  kernels::cpu::ReadProbe read(pool);
  kernels::cpu::MatrixProbe matrix(pool, kernels::cpu::MatrixType::bf16);
  read.measure(2);
  matrix.measure(1);
  const Limits limits{read.median(), matrix.median()};
  fmt::print("tier {}, {} threads: reads {:.1f} GB/s, FMA {:.0f} GFLOP/s\n", table.name,
             pool.num_threads(), limits.bandwidth / 1e9, limits.flops / 1e9);
  for (const WeightCoding coding : kCodings) {
    bench_matmul(context, limits, "qkv 6144 x 2048", 6144, 2048, coding);
    bench_matmul(context, limits, "o 2048 x 2048", 2048, 2048, coding);
    bench_matmul(context, limits, "down 2048 x 10944", 2048, 10944, coding);
    bench_experts(context, limits, coding);
  }
  bench_attention(context, limits);
  bench_pack(context, limits);
  return 0;
}

}  // namespace
}  // namespace dsmoe::bench

int main(int argc, char** argv) {
  try {
    return dsmoe::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "ops_bench: {}\n", error.what());
    return 1;
  }
}
