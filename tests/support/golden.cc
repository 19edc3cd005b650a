// Reading goldens and tracing a forward pass.
#include "support/golden.h"

#include <algorithm>
#include <cmath>

#include "kernels/elements.h"
#include "kernels/memory.h"

namespace dsmoe::testing {

std::filesystem::path goldens_folder() {
  return std::filesystem::path(DSMOE_SOURCE_DIR) / "tests" / "goldens";
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(goldens_folder())) {
    if (std::filesystem::exists(entry.path() / "golden.safetensors"))
      names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden::Golden(const std::string& name)
    : folder(goldens_folder() / name),
      file(store::SafetensorsFile::open(folder / "golden.safetensors")) {}

std::vector<double> Golden::values(const std::string& tensor) const {
  const store::TensorEntry& entry = file.at(tensor);
  std::vector<double> values(entry.shape.num_elements());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        kernels::read_element(file.bytes(entry).data(), entry.dtype, static_cast<int64_t>(i));
  }
  return values;
}

std::vector<int32_t> Golden::integers(const std::string& tensor) const {
  const store::TensorEntry& entry = file.at(tensor);
  std::vector<int32_t> values(entry.shape.num_elements());
  std::memcpy(values.data(), file.bytes(entry).data(), values.size() * sizeof(int32_t));
  return values;
}

int64_t Golden::context() const { return std::stoll(file.metadata().at("context")); }

std::vector<double> to_double(const tensor::TensorView& view) {
  std::vector<double> values(view.num_elements());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::read_element(view.data, view.dtype, static_cast<int64_t>(i));
  }
  return values;
}

std::vector<double> to_double(const kernels::Context& context, const tensor::TensorView& view) {
  std::vector<std::byte> host(view.num_bytes());
  kernels::download(context, view, host.data());
  tensor::TensorView copy = view;
  copy.data = host.data();
  return to_double(copy);
}

Trace trace(const kernels::Context& context, const model::Model& model,
            const std::vector<int32_t>& tokens, const TraceOptions& options) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  attention::KvCache cache(context, model.kv_layers(), attention::KvCache::pages_for(num_tokens));
  model::ForwardPass pass(
      context, model, cache,
      {.max_tokens = num_tokens, .max_sequences = 1, .max_top_k = options.top_k});
  Trace result;
  const auto observe = [&](int64_t layer, const moe::LayerTape& tape,
                           const tensor::TensorView& residual) {
    result.hidden[layer] = to_double(context, residual);
    if (!tape.index) return;
    result.index[layer].resize(tape.index.num_elements());
    pass.read(tape.index, result.index[layer].data());
    result.gate[layer] = to_double(context, tape.gate);
  };
  model::BlockObserver observer(observe);
  attention::KvSequence sequence;
  const model::Segment segment{.sequence = &sequence, .num_tokens = num_tokens};
  const tensor::TensorView hidden = pass.run({.tokens = tokens,
                                              .segments = {&segment, 1},
                                              .experts_of_token = options.experts_of_token,
                                              .observer = &observer});
  tensor::Arena arena("test", context.table->allocator);
  const tensor::DType scalar =
      model.operand == tensor::DType::F64 ? tensor::DType::F64 : tensor::DType::F32;
  const tensor::TensorView logits =
      arena.tensor("logits", scalar, {num_tokens, model.config.vocab_size});
  pass.logits(hidden, logits);
  result.logits = to_double(context, logits);
  return result;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  DSMOE_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

double max_abs_error(const std::vector<double>& a, const std::vector<double>& b) {
  DSMOE_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace dsmoe::testing
