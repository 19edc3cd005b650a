// A configuration in this program's own words, whatever type its files are of.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/config.h"

namespace dsmoe::model {

// As `deepseek` where the released options suffice, else as `dsmoe`: what a run is known by. It
// does not change when a model is written as another type.
nlohmann::json own_words(const ModelConfig& config);

}  // namespace dsmoe::model
