// The layer over ranks that share its experts: the bits of one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "comm/threads.h"
#include "kernels/checks.h"
#include "kernels/pack.h"
#include "moe/layer.h"

namespace dsmoe::moe {
namespace {

using kernels::PackOrder;
using kernels::ScoreFunction;
using kernels::Shape;

constexpr int64_t kHidden = 48, kWidth = 40, kSharedWidth = 24, kExperts = 15, kTopK = 4;
constexpr int64_t kIdle = 6;  // the expert nobody takes

// What a step computes: sequences of so many tokens, in the order of the whole step.
struct Step {
  DType operand = DType::F32;
  ScoreFunction score = ScoreFunction::softmax;
  int64_t ranks = 2;
  int64_t sequences_per_unit = 1;
  std::vector<int64_t> tokens = {5, 0, 7, 3, 6, 4, 1, 8, 2, 9};

  int64_t num_sequences() const { return static_cast<int64_t>(tokens.size()); }
  int64_t rank_of(int64_t sequence) const { return sequence / sequences_per_unit % ranks; }
  int64_t total() const {
    int64_t sum = 0;
    for (const int64_t count : tokens) sum += count;
    return sum;
  }
};

// Numbers that depend on what they are of, not on the rank that asks.
enum Stream : uint32_t { inputs, output_gradients, centroids, gates, ups, downs, shared, biases };

// Bytes of what a step gives, by name and by the number of the sequence or expert.
using Results = std::map<std::pair<std::string, int64_t>, std::vector<std::byte>>;

void keep(Results& results, const std::string& name, int64_t idx, const TensorView& view) {
  const auto* data = static_cast<const std::byte*>(view.data);
  results[{name, idx}] = {data, data + view.num_bytes()};
}

// One rank of a group: its sequences, its experts.
class Rank {
 public:
  Rank(const Step& step, comm::Group* group, std::vector<int64_t> sequences)
      : step_(step), sequences_(std::move(sequences)) {
    context_ = {.table = &kernels::select_cpu_table(), .pool = &pool_, .group = group};
    const int64_t rank = group == nullptr ? 0 : group->rank();
    const int64_t ranks = group == nullptr ? 1 : group->size();
    first_ = first_expert(kExperts, rank, ranks);
    own_ = first_expert(kExperts, rank + 1, ranks) - first_;
    std::vector<int32_t> starts{0};
    for (const int64_t s : sequences_)
      starts.push_back(starts.back() + static_cast<int32_t>(step.tokens[at(s)]));
    tokens_ = starts.back();
    starts_ = integers(starts);
    range_ = integers({0, static_cast<int32_t>(tokens_)});
    counted_ = integers(std::vector<int32_t>(at(tokens_), 1));
    memory_ = used_part(allocate_memory({.max_tokens = std::max<int64_t>(1, step.total()),
                                         .max_sequences = step.num_sequences(),
                                         .hidden = kHidden,
                                         .num_experts = kExperts,
                                         .top_k = kTopK,
                                         .routed_width = kWidth,
                                         .shared_width = kSharedWidth,
                                         .operand = step.operand,
                                         .passes = Passes::forward_and_backward,
                                         .rank = rank,
                                         .ranks = ranks},
                                        arena_),
                        tokens_, static_cast<int64_t>(sequences_.size()), kTopK);
    make_weights();
    x_ = of_tokens(inputs, 1, step.operand);
    d_out_ = of_tokens(output_gradients, 0.1, step.operand);
    out_ = arena_.tensor("out", DType::F32, {tokens_, kHidden});
    d_x_ = arena_.tensor("d_x", DType::F32, {tokens_, kHidden});
    gradients_ = {.centroids = arena_.tensor("gradient", DType::F32, {1, kExperts, kHidden}),
                  .routed = experts_gradient(own_, kWidth),
                  .shared = experts_gradient(1, kSharedWidth)};
  }

  void run() {
    const kernels::RouterRule rule{.score = step_.score,
                                   .top_k = kTopK,
                                   .normalise = step_.score == ScoreFunction::sigmoid,
                                   .scale = 1.5f};
    layer_forward(context_, {.operand = step_.operand,
                             .rule = rule,
                             .weights = weights_,
                             .tape = memory_.tape,
                             .workspace = memory_.workspace,
                             .x = x_,
                             .token_range = range_,
                             .sequence_starts = starts_,
                             .sequences_per_unit = step_.sequences_per_unit,
                             .residual = out_});
    const double weight = 1.0 / static_cast<double>(step_.num_sequences());
    layer_backward(context_, {.operand = step_.operand,
                              .rule = rule,
                              .balance = {.alpha = 0.3,
                                          .z_alpha = 0.2,
                                          .sequences_per_group = step_.sequences_per_unit,
                                          .group_weight = weight,
                                          .token_weight = weight},
                              .weights = transposed_,
                              .gradients = gradients_,
                              .tape = memory_.tape,
                              .workspace = memory_.workspace,
                              .row_gradients = memory_.gradients,
                              .losses = {.balance = arena_.tensor("loss", DType::F64, {2}),
                                         .z = arena_.tensor("loss", DType::F64, {1})},
                              .x = x_,
                              .d_out = d_out_,
                              .is_counted = counted_,
                              .token_range = range_,
                              .sequence_starts = starts_,
                              .d_x = d_x_});
  }

  // Of the tokens and the experts of this rank.
  void keep_own(Results& results) const {
    int64_t begin = 0;
    for (const int64_t s : sequences_) {
      const int64_t end = begin + step_.tokens[at(s)];
      keep(results, "out", s, out_.rows(begin, end));
      keep(results, "d_x", s, d_x_.rows(begin, end));
      begin = end;
    }
    const ExpertGradients& routed = gradients_.routed;
    for (int64_t e = 0; e < own_; ++e) {
      keep(results, "gate", first_ + e, flat(routed.gate).rows(e, e + 1));
      keep(results, "up", first_ + e, flat(routed.up).rows(e, e + 1));
      keep(results, "down", first_ + e, flat(routed.down).rows(e, e + 1));
    }
  }
  // Of what every rank has: the gradients that are summed over ranks.
  std::vector<float> dense_gradient() const {
    std::vector<float> all;
    for (const TensorView& view : {gradients_.centroids, gradients_.shared.gate,
                                   gradients_.shared.up, gradients_.shared.down})
      all.insert(all.end(), view.as<float>(), view.as<float>() + view.num_elements());
    return all;
  }
  int64_t rows_of(int64_t expert) const {
    const int32_t* offsets = memory_.tape.plan.expert_offsets.as<int32_t>();
    return offsets[expert + 1] - offsets[expert];
  }

 private:
  static std::size_t at(int64_t idx) { return static_cast<std::size_t>(idx); }
  static TensorView flat(TensorView view) {
    view.shape = {view.dim(0), view.dim(1) * view.dim(2)};
    return view;
  }
  TensorView integers(const std::vector<int32_t>& values) {
    const TensorView view =
        arena_.tensor("integers", DType::I32, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), view.as<int32_t>());
    return view;
  }
  // Element i is number `first` + i of its stream.
  TensorView numbers(const Shape& shape, Stream stream, int64_t first, double scale) {
    const Rng rng{.seed = 5, .purpose = RngPurpose::test, .stream = stream};
    const TensorView view = arena_.tensor("numbers", DType::F32, shape);
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      const float number = 2 * rng.uniform_f32(static_cast<uint64_t>(first + i)) - 1;
      view.as<float>()[i] = static_cast<float>(scale) * number;
    }
    return view;
  }
  TensorView of_tokens(Stream stream, double scale, DType dtype) {
    const TensorView all = arena_.tensor("tokens", dtype, {tokens_, kHidden});
    int64_t begin = 0;
    for (const int64_t s : sequences_) {
      const int64_t count = step_.tokens[at(s)];
      if (count == 0) continue;
      const TensorView part = numbers({count, kHidden}, stream, s * 1000 * kHidden, scale);
      kernels::round_values(context_, {.x = part, .out = all.rows(begin, begin + count)});
      begin += count;
    }
    return all;
  }

  // `count` matrices [n, k], the first of them number `first` of its stream.
  struct Stacks {
    WeightStack forward, transposed;
  };
  Stacks stacks(DType dtype, int64_t count, const Shape& shape, Stream stream, int64_t first) {
    const auto make = [&](int64_t n, int64_t k) {
      WeightStack stack{
          .dtype = dtype, .layout = context_.table->weight_layout, .count = count, .n = n, .k = k};
      stack.data = arena_.bytes("weights", stack.num_bytes());
      return stack;
    };
    const Stacks both{make(shape[0], shape[1]), make(shape[1], shape[0])};
    for (int64_t m = 0; m < count; ++m) {
      const TensorView source = numbers(shape, stream, (first + m) * shape.num_elements(), 0.3);
      kernels::pack_weight(context_, {.source = source, .target = both.forward, .matrix_idx = m});
      kernels::pack_weight(context_, {.source = source,
                                      .target = both.transposed,
                                      .matrix_idx = m,
                                      .order = PackOrder::transposed});
    }
    return both;
  }
  void make_weights() {
    const auto put = [](const Stacks& both, WeightStack& forward, WeightStack& transposed) {
      forward = both.forward;
      transposed = both.transposed;
    };
    const DType type = step_.operand;
    put(stacks(DType::F32, 1, {kExperts, kHidden}, centroids, 0), weights_.centroids,
        transposed_.centroids);
    put(stacks(type, own_, {kWidth, kHidden}, gates, first_), weights_.routed.gate,
        transposed_.routed.gate);
    put(stacks(type, own_, {kWidth, kHidden}, ups, first_), weights_.routed.up,
        transposed_.routed.up);
    put(stacks(type, own_, {kHidden, kWidth}, downs, first_), weights_.routed.down,
        transposed_.routed.down);
    put(stacks(type, 1, {kSharedWidth, kHidden}, shared, 0), weights_.shared.gate,
        transposed_.shared.gate);
    put(stacks(type, 1, {kSharedWidth, kHidden}, shared, 1), weights_.shared.up,
        transposed_.shared.up);
    put(stacks(type, 1, {kHidden, kSharedWidth}, shared, 2), weights_.shared.down,
        transposed_.shared.down);
    weights_.selection_bias = numbers({kExperts}, biases, 0, 0.05);
    weights_.selection_bias.as<float>()[kIdle] = -100;
  }
  ExpertGradients experts_gradient(int64_t count, int64_t width) {
    return {.gate = arena_.tensor("gradient", DType::F32, {count, width, kHidden}),
            .up = arena_.tensor("gradient", DType::F32, {count, width, kHidden}),
            .down = arena_.tensor("gradient", DType::F32, {count, kHidden, width})};
  }

  const Step& step_;
  std::vector<int64_t> sequences_;
  ThreadPool pool_{1};
  Context context_;
  tensor::Arena arena_{"rank"};
  int64_t first_ = 0, own_ = 0, tokens_ = 0;
  LayerWeights weights_;
  LayerTransposed transposed_;
  LayerGradients gradients_;
  LayerMemory memory_;
  TensorView starts_, range_, counted_, x_, d_out_, out_, d_x_;
};

using RankOf = int64_t (*)(const Step&, int64_t sequence);
int64_t in_turns(const Step& step, int64_t sequence) { return step.rank_of(sequence); }

std::vector<int64_t> sequences_of(const Step& step, int64_t rank, RankOf rank_of = in_turns) {
  std::vector<int64_t> list;
  for (int64_t s = 0; s < step.num_sequences(); ++s)
    if (rank_of(step, s) == rank) list.push_back(s);
  return list;
}

void keep_dense(Results& results, const std::vector<float>& sum) {
  const auto* data = reinterpret_cast<const std::byte*>(sum.data());
  results[{"dense", 0}] = {data, data + sum.size() * sizeof(float)};
}

// One rank computes all; the dense gradient is the sum of the ranks' shards, in their order.
Results alone(const Step& step) {
  Results results;
  std::vector<int64_t> all(static_cast<std::size_t>(step.num_sequences()));
  for (std::size_t s = 0; s < all.size(); ++s) all[s] = static_cast<int64_t>(s);
  Rank one(step, nullptr, all);
  one.run();
  one.keep_own(results);
  EXPECT_EQ(one.rows_of(kIdle), 0);
  std::vector<float> sum;
  for (int64_t r = 0; r < step.ranks; ++r) {
    Rank shard(step, nullptr, sequences_of(step, r));
    shard.run();
    const std::vector<float> part = shard.dense_gradient();
    if (r == 0) sum = part;
    for (std::size_t i = 0; r > 0 && i < sum.size(); ++i) sum[i] = sum[i] + part[i];
  }
  keep_dense(results, sum);
  return results;
}

// Every rank computes its sequences; `wrap` may put a group in front of the true one.
template <class Wrap>
Results shared_out(const Step& step, RankOf rank_of, Wrap&& wrap) {
  std::vector<Results> of_rank(static_cast<std::size_t>(step.ranks));
  comm::run_ranks({.size = static_cast<int>(step.ranks)}, [&](comm::Group& group) {
    auto seen = wrap(group);
    Rank own(step, &seen, sequences_of(step, group.rank(), rank_of));
    own.run();
    Results& results = of_rank[static_cast<std::size_t>(group.rank())];
    own.keep_own(results);
    const std::vector<float> dense = own.dense_gradient();
    std::vector<std::span<const float>> addends(of_rank.size());
    addends[0] = dense;
    std::vector<int> order;
    for (int r = 0; r < group.size(); ++r) order.push_back(r);
    std::vector<float> sum(group.rank() == 0 ? dense.size() : 0), room(sum.size() * order.size());
    const comm::OrderedSum<float> args{
        .addends = addends, .order = order, .room = room, .sum = sum};
    group.ordered_sum("dense gradients", args);
    if (group.rank() == 0) keep_dense(results, sum);
  });
  Results all;
  for (Results& results : of_rank) all.merge(results);
  return all;
}

// Another group under its own name, unchanged or with `damage` done to what comes.
class Seen : public comm::Group {
 public:
  using Damage = void (*)(std::string_view what, std::span<const comm::Room> come);
  explicit Seen(comm::Group& inner, Damage damage = nullptr)
      : Group(inner.rank(), inner.size()), inner_(inner), damage_(damage) {}

 private:
  void move(std::string_view what, std::span<const comm::Bytes> send,
            std::span<const comm::Room> receive) override {
    inner_.exchange(what, send, receive);
    if (damage_ != nullptr) damage_(what, receive);
  }
  comm::Group& inner_;
  Damage damage_;
};

std::vector<std::string> differences(const Results& a, const Results& b) {
  std::vector<std::string> names;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [key, bytes] : a) {
    const auto other = b.find(key);
    if (other == b.end() || other->second != bytes)
      names.push_back(key.first + " " + std::to_string(key.second));
  }
  return names;
}

using Names = std::vector<std::string>;

class Ranks : public ::testing::TestWithParam<std::tuple<int64_t, DType, ScoreFunction>> {
 protected:
  Step step() const {
    const auto [ranks, operand, score] = GetParam();
    return {.operand = operand, .score = score, .ranks = ranks};
  }
  static void expect_equal(const Step& step) {
    const Results expected = alone(step);
    EXPECT_EQ(differences(expected, shared_out(step, in_turns, [](auto& g) { return Seen(g); })),
              Names{});
  }
};

TEST_P(Ranks, GiveTheBitsOfOne) { expect_equal(step()); }

TEST_P(Ranks, SequencesOfAUnitStayTogether) {
  Step pairs = step();
  pairs.sequences_per_unit = 2;
  expect_equal(pairs);
}

TEST_P(Ranks, ARankMayHaveNoTokens) {
  Step some = step();
  for (int64_t s = 0; s < some.num_sequences(); ++s)
    if (some.rank_of(s) == 1) some.tokens[static_cast<std::size_t>(s)] = 0;
  expect_equal(some);
}

TEST_P(Ranks, OneRankMayHaveAllTokens) {
  Step one = step();
  for (int64_t s = 0; s < one.num_sequences(); ++s)
    if (one.rank_of(s) != one.ranks - 1) one.tokens[static_cast<std::size_t>(s)] = 0;
  expect_equal(one);
}

TEST_P(Ranks, NobodyMayHaveTokens) {
  Step none = step();
  std::fill(none.tokens.begin(), none.tokens.end(), 0);
  expect_equal(none);
}

// Rows that come back in another order.
void turned_round(std::string_view what, std::span<const comm::Room> come) {
  if (what != "experts' rows come back") return;
  for (const comm::Room& room : come) {
    const std::size_t row = room.size() % 96 == 0 ? 96 : 4;
    if (room.size() < 2 * row) continue;
    std::swap_ranges(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(row),
                     room.end() - static_cast<std::ptrdiff_t>(row));
  }
}

TEST_P(Ranks, ControlAnotherOrderOfRowsIsSeen) {
  const Step own = step();
  const Results expected = alone(own);
  const Names wrong = differences(
      expected, shared_out(own, in_turns, [](auto& g) { return Seen(g, turned_round); }));
  EXPECT_FALSE(wrong.empty());
}

// Ranks that take consecutive sequences: every row is right, but experts add them in another order.
int64_t in_blocks(const Step& step, int64_t sequence) {
  return sequence * step.ranks / step.num_sequences();
}

TEST_P(Ranks, ControlAnotherOrderOfSequencesIsSeenInWeightGradientsAlone) {
  const Step own = step();
  const Results expected = alone(own);
  const Names wrong =
      differences(expected, shared_out(own, in_blocks, [](auto& g) { return Seen(g); }));
  EXPECT_FALSE(wrong.empty());
  for (const std::string& name : wrong) {
    EXPECT_FALSE(name.starts_with("out") || name.starts_with("d_x")) << name;
  }
}

std::string name_of(const ::testing::TestParamInfo<Ranks::ParamType>& info) {
  const auto [ranks, operand, score] = info.param;
  return std::to_string(ranks) + "_" + std::string(tensor::name_of(operand)) +
         (score == ScoreFunction::sigmoid ? "_sigmoid" : "_softmax");
}
INSTANTIATE_TEST_SUITE_P(
    Groups, Ranks,
    ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(DType::F32, DType::BF16),
                       ::testing::Values(ScoreFunction::softmax, ScoreFunction::sigmoid)),
    name_of);

}  // namespace
}  // namespace dsmoe::moe
