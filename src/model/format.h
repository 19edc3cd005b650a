// The types of models that config.json can name: how each spells the keys of a configuration, what
// it leaves unsaid, and what it cannot say. Nothing else asks which type a model has.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/parameter_names.h"

namespace dsmoe::model {

struct ModelConfig;

struct Spelling {
  std::string_view theirs;
  std::string_view ours;
};

// A key as this program spells it, and a value as JSON.
struct Given {
  std::string_view key;
  std::string_view json;
};

struct Format {
  std::string_view model_type;
  std::string_view architecture;
  NameMap names;                        // of the tensors in its files
  std::span<const Spelling> spellings;  // the first of several for one key is written
  std::span<const Given> defaults;      // of keys that a file may leave out
  std::span<const Given> fixed;  // what every model of the type is; such keys are not written
  bool lists_layers = false;     // mlp_layer_types says which layers are MoE
  // Empty, or what of the configuration the type cannot mean.
  std::string (*objection)(const ModelConfig&) = nullptr;
};

// In the order in which a new model is offered to them; the last takes every model.
std::span<const Format> formats();

}  // namespace dsmoe::model
