// What GGUF files call the parameters of a model, and how their metadata says its configuration.
#pragma once

#include <string_view>

#include "model/config.h"
#include "store/gguf/gguf_file.h"
#include "store/gguf/gguf_writer.h"

namespace dsmoe::model {

// Tensors that a model without selection biases may have in a GGUF file: all of them are zero.
inline constexpr std::string_view kGgufSelectionBias = ".exp_probs_b.bias";

// The configuration of a file, with the names of its tensors. Throws Error(input) that names the
// key, what was expected and what was found; a key of the architecture that is not known may change
// the mathematics and is refused too.
ModelConfig config_of_gguf(const store::gguf::File& file);

// A model as an architecture of the format says it.
struct GgufModel {
  std::string_view architecture;
  // Of `config`, whose function is that of the model asked for: a selection bias that the model
  // does not have may be there, as zeros.
  ModelConfig config;
};

// Throws Error(input), starting with `what`, where no architecture says what the model is.
GgufModel gguf_model(const ModelConfig& config, std::string_view what);

// Everything of `original` that config_of_gguf() reads. What the format has no key for, such as
// settings of training, lies as JSON under "dsmoe.config".
void add_config(const GgufModel& model, const ModelConfig& original,
                store::gguf::Metadata& metadata);

}  // namespace dsmoe::model
