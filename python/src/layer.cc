// One MoE layer for PyTorch: addresses of contiguous arrays in, results written in place. The
// Python side (dsmoe/torch.py) has checked types and shapes.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "base/error.h"
#include "base/thread_pool.h"
#include "binding.h"
#include "kernels/checks.h"
#include "kernels/combine.h"
#include "kernels/table.h"
#include "moe/plain_layer.h"

namespace dsmoe::python {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

// Threads and kernels of all layers of the process; made at the first layer.
struct Machine {
  ThreadPool pool{0};
  kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
};

Machine& machine() {
  // Never destroyed: threads of Python may still be in a layer when the process ends.
  static auto* const made = new Machine;
  return *made;
}

using MemoryKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int, DType>;

struct SharedMemory {
  explicit SharedMemory(const moe::PlainSize& size) : memory(machine().context, size) {}
  std::mutex mutex;
  moe::PlainMemory memory;
};

// Layers of one size run one at a time, in the same memory.
std::shared_ptr<SharedMemory> memory_of(const moe::PlainSize& size) {
  static std::mutex mutex;
  static std::map<MemoryKey, std::weak_ptr<SharedMemory>> known;
  const MemoryKey key{size.hidden,       size.num_experts, size.routed_width,
                      size.shared_width, size.rule.top_k,  size.operand};
  const std::lock_guard lock(mutex);
  std::shared_ptr<SharedMemory> memory = known[key].lock();
  if (memory == nullptr) known[key] = memory = std::make_shared<SharedMemory>(size);
  return memory;
}

using Address = std::uintptr_t;  // 0: absent

TensorView view(Address address, DType dtype, const Shape& shape) {
  TensorView made;
  if (address == 0) return made;
  made.data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  made.dtype = dtype;
  made.shape = shape;
  return made;
}

class Layer {
 public:
  Layer(int64_t hidden, int64_t num_experts, int64_t routed_width, int64_t shared_width,
        const std::string& dtype, const nb::dict& rule)
      : size_{.hidden = hidden,
              .num_experts = num_experts,
              .routed_width = routed_width,
              .shared_width = shared_width,
              .operand = dtype == "bf16"   ? DType::BF16
                         : dtype == "fp64" ? DType::F64
                                           : DType::F32,
              .rule = rule_of(rule)} {
    check();
    layer_ = std::make_unique<moe::PlainLayer>(machine().context, size_);
    memory_ = memory_of(size_);
  }

  void set_weights(const nb::tuple& addresses) {
    const moe::PlainWeights weights = weights_of(addresses, size_.operand);
    const nb::gil_scoped_release release;
    const std::lock_guard lock(memory_->mutex);
    layer_->set_weights(weights);
  }

  std::size_t packed_bytes() const { return layer_->num_bytes(); }

  void forward(int64_t tokens, Address x, Address index, Address gate, Address out) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(memory_->mutex);
    layer_->forward(memory_->memory, tokens_of(tokens, x, index, gate),
                    view(out, scalar(), {tokens, size_.hidden}));
  }

  void backward(int64_t tokens, Address x, Address index, Address gate, Address d_out, Address d_x,
                Address d_gate, const nb::tuple& weights, const nb::tuple& d_weights) {
    const moe::PlainWeights plain = weights_of(weights, size_.operand);
    const moe::PlainBackward args{.tokens = tokens_of(tokens, x, index, gate),
                                  .d_out = view(d_out, size_.operand, {tokens, size_.hidden}),
                                  .d_x = view(d_x, scalar(), {tokens, size_.hidden}),
                                  .d_gate = view(d_gate, scalar(), {tokens, size_.rule.top_k}),
                                  .weights = weights_of(d_weights, scalar())};
    const nb::gil_scoped_release release;
    const std::lock_guard lock(memory_->mutex);
    layer_->backward(memory_->memory, plain, args);
  }

 private:
  DType scalar() const { return kernels::scalar_type(size_.operand); }

  static kernels::RouterRule rule_of(const nb::dict& given) {
    const auto word = nb::cast<std::string>(given["score"]);
    const auto groups = nb::cast<std::string>(given["group_score"]);
    return {.score = word == "sigmoid" ? kernels::ScoreFunction::sigmoid
                                       : kernels::ScoreFunction::softmax,
            .top_k = nb::cast<int>(given["top_k"]),
            .num_groups = nb::cast<int>(given["num_groups"]),
            .top_groups = nb::cast<int>(given["top_groups"]),
            .group_score = groups == "sum_of_best_two" ? kernels::GroupScore::sum_of_best_two
                                                       : kernels::GroupScore::max,
            .normalise = nb::cast<bool>(given["normalise"]),
            .scale = nb::cast<float>(given["scale"]),
            .scale_gates = nb::cast<bool>(given["scale_always"])
                               ? kernels::ScaleGates::always
                               : kernels::ScaleGates::unless_normalised};
  }

  void check() const {
    constexpr int64_t kMost = int64_t{1} << 20;
    const auto within = [](const char* name, int64_t value, int64_t lowest, int64_t highest) {
      if (value >= lowest && value <= highest) return;
      fail(ErrorKind::usage, "{} is {}; expected {} to {}", name, value, lowest, highest);
    };
    within("hidden", size_.hidden, 1, kMost);
    within("num_experts", size_.num_experts, 1, kMost);
    within("width", size_.routed_width, 1, kMost);
    within("shared_width", size_.shared_width, 0, kMost);
    within("top_k", size_.rule.top_k, 1,
           std::min<int64_t>(size_.num_experts, kernels::kMaxExpertsPerToken));
    within("num_groups", size_.rule.num_groups, 1, size_.num_experts);
    within("top_groups", size_.rule.top_groups, 1, size_.rule.num_groups);
    if (size_.num_experts % size_.rule.num_groups != 0) {
      fail(ErrorKind::usage, "num_groups {} does not divide num_experts {}", size_.rule.num_groups,
           size_.num_experts);
    }
  }

  moe::PlainTokens tokens_of(int64_t tokens, Address x, Address index, Address gate) const {
    return {.x = view(x, size_.operand, {tokens, size_.hidden}),
            .index = view(index, DType::I32, {tokens, size_.rule.top_k}),
            .gate = view(gate, scalar(), {tokens, size_.rule.top_k})};
  }

  // router, bias, gate_up, down, shared_gate_up, shared_down; the bias is no operand.
  moe::PlainWeights weights_of(const nb::tuple& addresses, DType dtype) const {
    const auto at = [&](std::size_t i) { return nb::cast<Address>(addresses[i]); };
    const int64_t h = size_.hidden, e = size_.num_experts, w = size_.routed_width,
                  s = size_.shared_width;
    return {.centroids = view(at(0), dtype, {e, h}),
            .selection_bias = view(at(1), scalar(), {e}),
            .gate_up = view(at(2), dtype, {e, 2 * w, h}),
            .down = view(at(3), dtype, {e, h, w}),
            .shared_gate_up = view(at(4), dtype, {2 * s, h}),
            .shared_down = view(at(5), dtype, {h, s})};
  }

  moe::PlainSize size_;
  std::unique_ptr<moe::PlainLayer> layer_;
  std::shared_ptr<SharedMemory> memory_;
};

}  // namespace

void bind_layer(nb::module_& module) {
  nb::class_<Layer>(module, "Layer", "One MoE layer over arrays of others, by their addresses.")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, const std::string&, const nb::dict&>(),
           nb::arg("hidden"), nb::arg("num_experts"), nb::arg("routed_width"),
           nb::arg("shared_width"), nb::arg("dtype"), nb::arg("rule"))
      .def("set_weights", &Layer::set_weights, nb::arg("addresses"))
      .def_prop_ro("packed_bytes", &Layer::packed_bytes)
      .def("forward", &Layer::forward, nb::arg("tokens"), nb::arg("x"), nb::arg("index"),
           nb::arg("gate"), nb::arg("out"))
      .def("backward", &Layer::backward, nb::arg("tokens"), nb::arg("x"), nb::arg("index"),
           nb::arg("gate"), nb::arg("d_out"), nb::arg("d_x"), nb::arg("d_gate"), nb::arg("weights"),
           nb::arg("d_weights"));
}

}  // namespace dsmoe::python
