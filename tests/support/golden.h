// The committed goldens, and a small runner of models for tests.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "kernels/table.h"
#include "store/safetensors.h"

namespace dsmoe::testing {

std::filesystem::path goldens_folder();

// Names of the folders that hold an inference golden, sorted.
std::vector<std::string> golden_names();

// Values of a golden file as double, whatever their stored type.
struct Golden {
  explicit Golden(const std::string& name);

  bool has(const std::string& tensor) const { return file.find(tensor) != nullptr; }
  std::vector<double> values(const std::string& tensor) const;
  std::vector<int32_t> integers(const std::string& tensor) const;
  int64_t context() const;

  std::filesystem::path folder;
  store::SafetensorsFile file;
};

// What one forward pass of one document gave, as double.
struct Trace {
  std::vector<double> logits;                     // [tokens, vocabulary]
  std::map<int64_t, std::vector<double>> hidden;  // per layer
  std::map<int64_t, std::vector<int32_t>> index;  // per MoE layer [tokens, top_k]
  std::map<int64_t, std::vector<double>> gate;    // per MoE layer [tokens, top_k]
};

struct TraceOptions {
  int64_t top_k = 0;
  std::vector<int32_t> experts_of_token;
};
Trace trace(const kernels::Context& context, const model::Model& model,
            const std::vector<int32_t>& tokens, const TraceOptions& options = {});

// norm(a - b) / norm(b).
double relative_error(const std::vector<double>& a, const std::vector<double>& b);
double max_abs_error(const std::vector<double>& a, const std::vector<double>& b);

// Values of a tensor in host memory as double.
std::vector<double> to_double(const tensor::TensorView& view);
// The same from a device's memory.
std::vector<double> to_double(const kernels::Context& context, const tensor::TensorView& view);

}  // namespace dsmoe::testing
