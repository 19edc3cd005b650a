// The paper's question (figure 2): architectures of equal expert parameters and compute, made from
// one config, and what several seeds of each say.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"

namespace dsmoe::train {

// Numbers in the feed-forward layers that a comparison varies: those that are MoE in its base.
struct ExpertParameters {
  int64_t total = 0;   // of all experts
  int64_t active = 0;  // of the experts that one token meets
  int64_t router = 0;  // centroids
};
// In the layers that are MoE in `base`.
ExpertParameters count_expert_parameters(const model::ModelConfig& config,
                                         const model::ModelConfig& base);

// total: every number of the model equals the others' but the router's; active: only what a token
// meets does (a dense model); upper_bound: a dense model as wide as all experts.
enum class Budget { total, active, upper_bound };

struct ComparedModel {
  std::string name;   // of folders: "a", "b", "c", "dense", "c-shared-2", "dense-total", "b-fp32"
  std::string title;  // "(a) top 2 of 8"
  std::string less;   // the model it is set against in pairs; empty: none
  Budget budget = Budget::total;
  model::ModelConfig config;
};

struct ComparisonShape {
  int64_t segments = 4;           // m: (b) and (c) have m times as many experts as (a), 1/m as wide
  std::vector<int64_t> shared;    // (c) again with so many shared experts, as many fewer routed
  std::vector<std::string> fp32;  // these again, computed in fp32: what other roundings move
  bool upper_bound = false;
};

// dense, (a) top-K of N, (b) mK of mN, (c) = `base` with Ks shared experts, and when asked for (c)
// with other Ks, dense with the total width, models in fp32. Throws Error(input) with the numbers
// when `base` cannot be made from whole experts, or its dense layers rule out a dense model of the
// same width throughout; Error(usage) for a Ks or a model that cannot be added.
std::vector<ComparedModel> compared_models(const model::ModelConfig& base,
                                           const ComparisonShape& shape);

// Throws Error(input) naming both counts unless every model has the last Budget::total model's
// expert parameters, as far as its budget says.
void check_equal_parameters(std::span<const ComparedModel> models);

// Of one figure over seeds.
struct Spread {
  double mean = 0;
  double deviation = 0;  // of the sample, n - 1; 0 for one value
  double lowest = 0, highest = 0;
};
Spread spread_of(std::span<const double> values);

// Half the width of the 95 % interval of the mean (Student's t); infinite for one value.
double half_width_95(const Spread& spread, std::size_t count);

}  // namespace dsmoe::train
