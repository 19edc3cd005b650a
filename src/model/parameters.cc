// Names of stored tensors -> places in memory.
#include "model/parameters.h"

#include <algorithm>
#include <utility>

#include "base/thread_pool.h"
#include "kernels/checks.h"
#include "kernels/pack.h"

namespace dsmoe::model {
namespace {

// A matrix and, for training, its transpose.
struct Pair {
  WeightStack weight;
  WeightStack transposed;
};

struct ExpertPairs {
  Pair gate, up, down;
};

// Allocates and records where each name goes.
class Allocation {
 public:
  Allocation(const Context& context, const ModelConfig& config, DType operand, moe::Passes passes,
             tensor::Arena& arena)
      : context_(context),
        config_(config),
        operand_(operand),
        scalar_(kernels::scalar_type(operand)),
        passes_(passes),
        arena_(arena) {}

  std::vector<Placement> take_placements() { return std::move(placements_); }

  TensorView values(const std::string& what, const std::string& name, DType dtype,
                    const kernels::Shape& shape) {
    const TensorView view = arena_.tensor(what, dtype, shape);
    placements_.push_back({.name = name, .values = view});
    return view;
  }
  TensorView vector(const std::string& what, const std::string& name, int64_t size) {
    return values(what, name, scalar_, {size});
  }

  Pair matrix(const std::string& what, const std::string& name, int64_t n, int64_t k) {
    const Pair pair = stacks(what, operand_, {1, n, k, coding(name)});
    place(name, pair);
    return pair;
  }

  Pair centroids(const std::string& name) {
    const Pair pair = stacks("router", scalar_, {1, config_.n_routed_experts, config_.hidden_size});
    place(name, pair);
    return pair;
  }

  // q, k and v as one matrix: rows of q, then of k, then of v.
  Pair qkv(const std::string& prefix) {
    const int64_t q = config_.q_width();
    const int64_t kv = config_.kv_width();
    const Pair pair =
        stacks("attention", operand_,
               {1, q + 2 * kv, config_.hidden_size, coding(prefix + "q_proj.weight")});
    place(prefix + "q_proj.weight", pair, 0, 0);
    place(prefix + "k_proj.weight", pair, 0, q);
    place(prefix + "v_proj.weight", pair, 0, q + kv);
    return pair;
  }
  TensorView qkv_bias(const std::string& prefix) {
    const int64_t q = config_.q_width();
    const int64_t kv = config_.kv_width();
    const TensorView bias = arena_.tensor("attention", scalar_, {q + 2 * kv});
    placements_.push_back({.name = prefix + "q_proj.bias", .values = bias.rows(0, q)});
    placements_.push_back({.name = prefix + "k_proj.bias", .values = bias.rows(q, q + kv)});
    placements_.push_back(
        {.name = prefix + "v_proj.bias", .values = bias.rows(q + kv, q + 2 * kv)});
    return bias;
  }

  // prefix0.gate_proj.weight, prefix0.up_proj.weight, ...: one matrix of each stack per expert.
  ExpertPairs experts(const std::string& what, const std::string& prefix, int64_t count,
                      int64_t width) {
    const ExpertPairs pairs = expert_stacks(what, count, width);
    for (int64_t e = 0; e < count; ++e) place_expert(prefix + std::to_string(e) + ".", pairs, e);
    return pairs;
  }
  ExpertPairs expert(const std::string& what, const std::string& prefix, int64_t width) {
    const ExpertPairs pairs = expert_stacks(what, 1, width);
    place_expert(prefix, pairs, 0);
    return pairs;
  }

 private:
  struct StackSize {
    int64_t count, n, k;
    kernels::WeightCoding coding = kernels::WeightCoding::plain;
  };

  Pair stacks(const std::string& what, DType dtype, const StackSize& size) {
    Pair pair{.weight = stack(what, dtype, size)};
    if (passes_ == moe::Passes::forward_and_backward) {
      pair.transposed = context_.table->takes_transposes
                            ? kernels::transpose_of(pair.weight)
                            : stack(what + ", transposed", dtype, {size.count, size.k, size.n});
    }
    return pair;
  }

  WeightStack stack(const std::string& what, DType dtype, const StackSize& size) {
    WeightStack stack{.dtype = dtype,
                      .layout = context_.table->weight_layout,
                      .device = arena_.device(),
                      .count = size.count,
                      .n = size.n,
                      .k = size.k,
                      .coding = size.coding};
    stack.data = arena_.bytes(what, stack.num_bytes());
    return stack;
  }

  // Integers stay integers where products take them; elsewhere the weight becomes the numbers they
  // stand for.
  kernels::WeightCoding coding(std::string_view name) const {
    const bool taken = operand_ == DType::BF16 && passes_ == moe::Passes::forward &&
                       context_.table->weight_layout == kernels::WeightLayout::panels;
    return taken ? coding_of(config_.quantization, name) : kernels::WeightCoding::plain;
  }

  void place(const std::string& name, const Pair& pair, int64_t matrix_idx = 0,
             int64_t row_begin = 0) {
    placements_.push_back(
        {.name = name,
         .weight = pair.weight,
         .transposed = pair.transposed.data == pair.weight.data ? WeightStack{} : pair.transposed,
         .matrix_idx = matrix_idx,
         .row_begin = row_begin});
  }

  ExpertPairs expert_stacks(const std::string& what, int64_t count, int64_t width) {
    const int64_t hidden = config_.hidden_size;
    return {.gate = stacks(what, operand_, {count, width, hidden, coding("gate_proj.weight")}),
            .up = stacks(what, operand_, {count, width, hidden, coding("up_proj.weight")}),
            .down = stacks(what, operand_, {count, hidden, width, coding("down_proj.weight")})};
  }

  void place_expert(const std::string& prefix, const ExpertPairs& pairs, int64_t expert_idx) {
    place(prefix + "gate_proj.weight", pairs.gate, expert_idx);
    place(prefix + "up_proj.weight", pairs.up, expert_idx);
    place(prefix + "down_proj.weight", pairs.down, expert_idx);
  }

  const Context& context_;
  const ModelConfig& config_;
  DType operand_;
  DType scalar_;
  moe::Passes passes_;
  tensor::Arena& arena_;
  std::vector<Placement> placements_;
};

moe::ExpertWeights weights_of(const ExpertPairs& pairs) {
  return {.gate = pairs.gate.weight, .up = pairs.up.weight, .down = pairs.down.weight};
}
moe::ExpertWeights transposed_of(const ExpertPairs& pairs) {
  return {.gate = pairs.gate.transposed, .up = pairs.up.transposed, .down = pairs.down.transposed};
}

void allocate_ffn(Allocation& allocation, const ModelConfig& config, int64_t layer,
                  const std::string& prefix, moe::LayerWeights& weights,
                  moe::LayerTransposed& transposed) {
  if (!config.is_moe_layer(layer)) {
    const ExpertPairs dense = allocation.expert("dense layers", prefix, config.intermediate_size);
    weights.shared = weights_of(dense);
    transposed.shared = transposed_of(dense);
    return;
  }
  const Pair centroids = allocation.centroids(prefix + "gate.weight");
  weights.centroids = centroids.weight;
  transposed.centroids = centroids.transposed;
  if (config.topk_method == TopkMethod::noaux_tc) {
    weights.selection_bias = allocation.vector("router", prefix + "gate.e_score_correction_bias",
                                               config.n_routed_experts);
  }
  const ExpertPairs routed = allocation.experts(
      "routed experts", prefix + "experts.", config.n_routed_experts, config.moe_intermediate_size);
  weights.routed = weights_of(routed);
  transposed.routed = transposed_of(routed);
  if (config.n_shared_experts > 0) {
    const ExpertPairs shared =
        allocation.expert("shared experts", prefix + "shared_experts.", config.shared_width());
    weights.shared = weights_of(shared);
    transposed.shared = transposed_of(shared);
  }
}

}  // namespace

ParameterSet allocate_parameters(const Context& context, const ModelConfig& config, DType operand,
                                 moe::Passes passes, tensor::Arena& arena) {
  Allocation allocation(context, config, operand, passes, arena);
  ParameterSet set;
  const std::string embedding = "model.embed_tokens.weight";
  const int64_t hidden = config.hidden_size;
  set.forward.embedding =
      allocation.values("embedding", embedding, operand, {config.vocab_size, hidden});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.";
    BlockWeights block;
    BlockTransposed transposed;
    block.attention_norm = allocation.vector("norms", prefix + "input_layernorm.weight", hidden);
    const Pair qkv = allocation.qkv(attention);
    const Pair out =
        allocation.matrix("attention", attention + "o_proj.weight", hidden, config.q_width());
    block.attention.qkv = qkv.weight;
    block.attention.out = out.weight;
    transposed.qkv = qkv.transposed;
    transposed.out = out.transposed;
    if (config.attention_bias) {
      block.attention.qkv_bias = allocation.qkv_bias(attention);
      block.attention.out_bias = allocation.vector("attention", attention + "o_proj.bias", hidden);
    }
    block.ffn_norm = allocation.vector("norms", prefix + "post_attention_layernorm.weight", hidden);
    allocate_ffn(allocation, config, layer, prefix + "mlp.", block.ffn, transposed.ffn);
    set.forward.blocks.push_back(block);
    set.backward.blocks.push_back(transposed);
  }
  set.forward.final_norm = allocation.vector("norms", "model.norm.weight", hidden);
  const Pair head = allocation.matrix(
      "head", config.tie_word_embeddings ? embedding : "lm_head.weight", config.vocab_size, hidden);
  set.forward.head = head.weight;
  set.backward.head = head.transposed;
  set.placements = allocation.take_placements();
  return set;
}

namespace {

constexpr int64_t kRowsAtATime = 64;

// Through a bounded host buffer, so that a table on a device needs no second copy in host memory.
void convert_values(const Context& context, const TensorView& stored, const TensorView& target) {
  DSMOE_CHECK(stored.shape == target.shape, "stored {}, expected {}", to_string(stored.shape),
              to_string(target.shape));
  if (target.device == kernels::Device::cpu) {
    parallel_for(*context.pool, stored.dim(0), kRowsAtATime, [&](int64_t begin, int64_t end) {
      kernels::convert_elements(stored.rows(begin, end), target.rows(begin, end));
    });
    return;
  }
  const int64_t rows = stored.dim(0);
  const int64_t row_elements = rows > 0 ? stored.num_elements() / rows : 0;
  const int64_t chunk =
      std::max<int64_t>(1, (int64_t{1} << 19) / std::max<int64_t>(1, row_elements));
  std::vector<std::byte> buffer;
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const TensorView part = target.rows(begin, std::min(rows, begin + chunk));
    buffer.resize(part.num_bytes());
    TensorView host = part;
    host.data = buffer.data();
    host.device = kernels::Device::cpu;
    kernels::convert_elements(stored.rows(begin, std::min(rows, begin + chunk)), host);
    kernels::upload(context, buffer.data(), part);
  }
}

}  // namespace

void place_tensor(const Context& context, const Placement& placement, const StoredTensor& stored) {
  const int64_t begin = stored.row_begin;
  const TensorView& elements = stored.elements;
  if (placement.values) {
    convert_values(context, elements, placement.values.rows(begin, begin + elements.dim(0)));
  }
  kernels::PackWeight pack{.source = elements,
                           .scale = stored.scale,
                           .matrix_idx = placement.matrix_idx,
                           .row_begin = placement.row_begin + begin};
  if (placement.weight) {
    pack.target = placement.weight;
    kernels::pack_weight(context, pack);
  }
  if (placement.transposed) {
    pack.target = placement.transposed;
    pack.order = kernels::PackOrder::transposed;
    kernels::pack_weight(context, pack);
  }
}

void load_parameters(const Context& context, const ParameterSet& parameters, TensorSource& source) {
  constexpr int64_t kPieceBytes = int64_t{16} << 20;  // what is mapped at a time beside the model
  std::vector<std::string> names;
  for (const Placement& placement : parameters.placements) names.push_back(placement.name);
  source.expect(names);
  for (const Placement& placement : parameters.placements) {
    const TensorView whole = source.tensor(placement.name);
    const bool integers = whole.dtype == DType::I8 || whole.dtype == DType::U8;
    const std::string scale_name = tensor::scale_name(placement.name);
    const TensorView scale = integers ? source.tensor(scale_name) : TensorView{};
    const int64_t rows = whole.dim(0);
    const int64_t row_bytes =
        rows > 0 ? std::max<int64_t>(1, static_cast<int64_t>(whole.num_bytes()) / rows) : 1;
    const int64_t step = std::max<int64_t>(kernels::kPanelWidth, kPieceBytes / row_bytes);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t end = std::min(rows, begin + step);
      place_tensor(context, placement,
                   {.elements = whole.rows(begin, end),
                    .scale = integers ? scale.rows(begin, end) : TensorView{},
                    .row_begin = begin});
      source.release_rows(placement.name, begin, end);
    }
    source.release(placement.name);
    if (integers) source.release(scale_name);
  }
}

}  // namespace dsmoe::model
