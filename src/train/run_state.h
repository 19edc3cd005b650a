// Training state on disk: what a checkpoint of a run holds, and what must agree to go on from it.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "base/json.h"
#include "store/checkpoint.h"
#include "train/step.h"

namespace dsmoe::train {

// Everything that decides the weights. `fixed` must be equal to resume; `plan` (steps, learning
// rate) may change, which is said.
struct RunIdentity {
  Json fixed = Json::object();
  Json plan = Json::object();
  Json config = Json::object();  // of which `fixed` holds the hash: for messages
  std::string former_data;       // what checkpoints of earlier programs have for "data"; or empty
};

struct SaveRequest {
  std::filesystem::path run;
  int64_t step = 0;
  const model::ModelConfig& config;  // torch_dtype is the compute type
  const RunIdentity& identity;
  const std::map<std::string, std::string>& files;  // name -> bytes, beside the weights
};

// Writes RUN/step-N: trained tensors from the optimiser, the others from `frozen`, in the compute
// type; masters and moments in train_state.safetensors. Where ranks share the update, all of them
// call it and each writes its slices; only the first asks `frozen`.
void save_checkpoint(const SaveRequest& request, Optimizer& optimizer, ParameterSource& frozen);

// Reads train_state.safetensors of a verified checkpoint into the optimiser and places the weights.
// Throws Error(input) that names every difference of the identity, or the first tensor that does
// not fit. Returns differences of the plan, in words; warns when another kind of
// device or another engine version made it.
std::vector<std::string> restore_checkpoint(const Context& context,
                                            const std::filesystem::path& folder,
                                            const RunIdentity& identity, Optimizer& optimizer);

}  // namespace dsmoe::train
