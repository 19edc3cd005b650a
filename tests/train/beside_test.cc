// Weight gradients beside the backward pass, on a device that puts them off for as long as nobody
// waits: the same bits as in turn. A wait that is left out changes them.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>

#include "base/flush_denormals.h"
#include "kernels/ops.h"
#include "kernels/table.h"
#include "model/training_pass.h"
#include "tiny_run.h"

namespace dsmoe::testing {
namespace {

using kernels::BesideWork;
using kernels::Context;
using tensor::DType;
using tensor::TensorView;

constexpr int kNoKind = -1;
constexpr int64_t kPiecesOfBlock = 3;  // the layer's down, its up, the projections

// The second queue. Its address is the stream of what runs there.
struct Queue {
  std::deque<std::pair<int64_t, std::function<void()>>> ops;  // with the piece each belongs to
  int64_t pieces = 0;
  int deaf_to = kNoKind;  // waits for this piece of every block are not heard

  void run_up_to(int64_t piece) {
    const FlushDenormals guard;
    for (; !ops.empty() && ops.front().first <= piece; ops.pop_front()) ops.front().second();
  }
};
Queue queue;

template <class Args, class Op>
void now_or_late(const Context& context, const Args& args, Op op) {
  if (context.stream != &queue) return op(args);
  queue.ops.emplace_back(queue.pieces + 1, [args, op] { op(args); });
}

// Rows laid out, as a device does whose products read them in order.
kernels::Attempt lay_out(const Context& context, const kernels::DispatchRows& args) {
  now_or_late(context, args, [](const kernels::DispatchRows& own) {
    const std::size_t bytes =
        static_cast<std::size_t>(own.rows.columns()) * tensor::size_of(own.out.dtype);
    const int32_t count = own.offsets.as<int32_t>()[own.offsets.dim(0) - 1];
    for (int32_t row = 0; row < count; ++row) {
      std::memcpy(static_cast<char*>(own.out.data) + static_cast<std::size_t>(row) * bytes,
                  static_cast<const char*>(own.rows.x.data) +
                      static_cast<std::size_t>(own.rows.indices()[row]) * bytes,
                  bytes);
    }
  });
  return {};
}

kernels::KernelTable table_in_turn() {
  kernels::KernelTable table = kernels::ref_table();
  table.dispatch_rows = lay_out;
  return table;
}

kernels::KernelTable table_beside() {
  kernels::KernelTable table = table_in_turn();
  table.weight_gradient = [](const Context& context, const kernels::WeightGradient& args) {
    now_or_late(context, args, [](const kernels::WeightGradient& own) {
      kernels::ref_table().weight_gradient({}, own);
    });
  };
  table.beside = {.begin = [](const Context&) -> void* { return &queue; },
                  .end = [](const Context&) { return BesideWork{.piece = ++queue.pieces}; },
                  .wait =
                      [](const Context&, BesideWork work) {
                        if ((work.piece - 1) % kPiecesOfBlock != queue.deaf_to)
                          queue.run_up_to(work.piece);
                      }};
  return table;
}

// All gradients of one micro-batch.
std::vector<std::byte> gradients(const kernels::KernelTable& table, int deaf_to = kNoKind) {
  queue = {};
  queue.deaf_to = deaf_to;
  model::ModelConfig config = tiny_config(DType::F32);
  config.num_hidden_layers = 4;
  ThreadPool pool(1);
  const Context context{.table = &table, .pool = &pool};
  RandomWeights weights;
  const auto model =
      model::make_model(context, config, weights,
                        {.operand = DType::F32, .passes = moe::Passes::forward_and_backward});
  tensor::Arena arena("gradients");
  const model::GradientBuffers buffers = model::allocate_gradients(
      context, config, DType::F32, [](const std::string&) { return true; }, arena);
  model::TrainingPass pass(context, *model, buffers.views, {.balance_alpha = 0.3, .z_alpha = 0.1},
                           {.max_tokens = 24, .max_rows = 2, .max_documents = 2},
                           model::Recompute::nothing);
  std::vector<int32_t> tokens, targets;
  for (int32_t i = 0; i < 24; ++i) {
    tokens.push_back((i * i * 5 + 3 * i + 1) % static_cast<int32_t>(config.vocab_size));
    targets.push_back((i * 7 + 2) % static_cast<int32_t>(config.vocab_size));
  }
  const std::vector<int32_t> rows{13, 11};
  pass.run({tokens, targets, rows, rows}, {.counted_targets = 24, .num_balance_groups = 2});
  queue.run_up_to(queue.pieces);
  std::vector<std::byte> all;
  for (const model::NamedGradient& named : buffers.named) {
    const auto* data = static_cast<const std::byte*>(named.gradient.data);
    all.insert(all.end(), data, data + named.gradient.num_bytes());
  }
  return all;
}

TEST(Beside, GivesTheBitsOfInTurnHoweverLateItRuns) {
  const std::vector<std::byte> expected = gradients(table_in_turn());
  EXPECT_EQ(gradients(table_beside()), expected);
  EXPECT_EQ(queue.pieces, 4 * kPiecesOfBlock);
}

// Every kind of wait is needed: without it a piece reads what was written over.
TEST(Beside, ControlsWithoutOneOfTheWaitsAreSeen) {
  const std::vector<std::byte> expected = gradients(table_in_turn());
  for (int kind = 0; kind < kPiecesOfBlock; ++kind)
    EXPECT_NE(gradients(table_beside(), kind), expected) << "piece " << kind << " of each block";
}

}  // namespace
}  // namespace dsmoe::testing
