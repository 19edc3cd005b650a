// Arithmetic of the comparison.
#include "train/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "model/inventory.h"

namespace dsmoe::train {
namespace {

using model::ModelConfig;

constexpr std::string_view kWhat = "comparison";

// mN and mK of the base: shared experts count as experts that are always chosen.
struct Counts {
  int64_t all = 0, chosen = 0;
};
Counts counts_of(const ModelConfig& config) {
  return {.all = config.n_routed_experts + config.n_shared_experts,
          .chosen = config.num_experts_per_tok + config.n_shared_experts};
}

std::string fitting_segments(const Counts& counts) {
  std::string list;
  const int64_t common = std::gcd(counts.all, counts.chosen);
  for (int64_t m = 2; m <= common; ++m) {
    if (common % m == 0) list += fmt::format("{}{}", list.empty() ? "" : ", ", m);
  }
  return list.empty() ? "none: change the config" : list;
}

void check_base(const ModelConfig& base, int64_t segments) {
  if (base.num_moe_layers() == 0) {
    fail(ErrorKind::input,
         "a comparison starts from a DeepSeekMoE config; this one has no MoE layer "
         "(n_routed_experts)");
  }
  if (base.topk_method != model::TopkMethod::greedy) {
    fail(ErrorKind::input,
         "a comparison needs topk_method \"greedy\": expert groups and selection biases of \"{}\" "
         "do "
         "not carry over to other numbers of experts",
         model::name_of(base.topk_method));
  }
  if (base.n_shared_experts == 0) {
    fail(ErrorKind::input,
         "a comparison starts from architecture (c), with shared experts; this config has "
         "n_shared_experts 0");
  }
  const Counts counts = counts_of(base);
  if (segments < 2 || counts.all % segments != 0 || counts.chosen % segments != 0) {
    fail(ErrorKind::input,
         "architecture (a) joins {} experts of (c) into one, but (c) has {} + {} = {} experts, of "
         "which a token meets {} + {} = {}; both must be multiples of it (possible here: {})",
         segments, base.n_shared_experts, base.n_routed_experts, counts.all, base.n_shared_experts,
         base.num_experts_per_tok, counts.chosen, fitting_segments(counts));
  }
}

ModelConfig routed_only(const ModelConfig& base, int64_t experts, int64_t top_k, int64_t width) {
  ModelConfig config = base;
  config.n_shared_experts = 0;
  config.n_routed_experts = experts;
  config.num_experts_per_tok = top_k;
  config.moe_intermediate_size = width;
  config.check(kWhat);
  return config;
}

ModelConfig dense(const ModelConfig& base, int64_t width) {
  if (base.num_moe_layers() < base.num_hidden_layers && base.intermediate_size != width) {
    fail(
        ErrorKind::input,
        "a dense model has one width in all layers: {} where the experts were, but the config's "
        "own dense layers have intermediate_size {}; set that to {}, or first_k_dense_replace to 0",
        width, base.intermediate_size, width);
  }
  ModelConfig config = base;
  config.n_routed_experts = config.n_shared_experts = config.num_experts_per_tok = 0;
  config.intermediate_size = width;
  config.check(kWhat);
  return config;
}

// (c) with `shared` of its experts met by every token and as many fewer of them routed.
ComparedModel with_shared(const ModelConfig& base, int64_t shared) {
  const Counts counts = counts_of(base);
  if (shared < 1 || shared >= counts.chosen || shared == base.n_shared_experts) {
    fail(ErrorKind::usage,
         "--shared {}: (c) has {} shared experts of the {} that a token meets; another number from "
         "1 to {} is expected",
         shared, base.n_shared_experts, counts.chosen, counts.chosen - 1);
  }
  ModelConfig config = base;
  config.n_shared_experts = shared;
  config.n_routed_experts = counts.all - shared;
  config.num_experts_per_tok = counts.chosen - shared;
  config.check(kWhat);
  return {.name = fmt::format("c-shared-{}", shared),
          .title = fmt::format("(c) {} shared + top {} of {}", shared, config.num_experts_per_tok,
                               config.n_routed_experts),
          .less = "c",
          .config = config};
}

ComparedModel in_fp32(std::span<const ComparedModel> models, const std::string& name) {
  std::string known;
  for (const ComparedModel& model : models) {
    if (model.config.torch_dtype == tensor::DType::F32) {
      fail(ErrorKind::usage, "--fp32 {}: this comparison computes in fp32 already", name);
    }
    if (model.name == name) {
      ComparedModel again = model;
      again.name += "-fp32";
      again.title += ", fp32";
      again.less = name;
      again.config.torch_dtype = tensor::DType::F32;
      return again;
    }
    known += (known.empty() ? "" : ", ") + model.name;
  }
  fail(ErrorKind::usage, "--fp32 {}: no such model; expected one of {}", name, known);
}

std::string percent(int64_t part, int64_t whole) {
  return fmt::format("{:+.2f} %",
                     100.0 * static_cast<double>(part - whole) / static_cast<double>(whole));
}

}  // namespace

ExpertParameters count_expert_parameters(const ModelConfig& config, const ModelConfig& base) {
  ExpertParameters sum;
  for (const model::Stack& stack : model::stacks(config, model::share_of(config))) {
    if (stack.layer < 0 || !base.is_moe_layer(stack.layer)) continue;
    if (stack.role == model::Role::router) {
      sum.router += stack.num_elements();
    } else if (model::is_expert(stack.role)) {
      sum.total += stack.count * stack.num_elements();
      sum.active += model::elements_per_token(config, stack);
    }
  }
  return sum;
}

std::vector<ComparedModel> compared_models(const ModelConfig& base, const ComparisonShape& shape) {
  const int64_t m = shape.segments;
  check_base(base, m);
  const Counts counts = counts_of(base);
  const int64_t width = base.moe_intermediate_size;
  std::vector<ComparedModel> models;
  models.push_back({.name = "dense",
                    .title = "dense, active width",
                    .less = "a",
                    .budget = Budget::active,
                    .config = dense(base, counts.chosen * width)});
  models.push_back({.name = "a",
                    .title = fmt::format("(a) top {} of {}", counts.chosen / m, counts.all / m),
                    .less = "b",
                    .config = routed_only(base, counts.all / m, counts.chosen / m, m * width)});
  models.push_back({.name = "b",
                    .title = fmt::format("(b) top {} of {}", counts.chosen, counts.all),
                    .less = "c",
                    .config = routed_only(base, counts.all, counts.chosen, width)});
  models.push_back({.name = "c",
                    .title = fmt::format("(c) {} shared + top {} of {}", base.n_shared_experts,
                                         base.num_experts_per_tok, base.n_routed_experts),
                    .config = base});
  for (const int64_t shared : shape.shared) models.push_back(with_shared(base, shared));
  if (shape.upper_bound) {
    models.push_back({.name = "dense-total",
                      .title = "dense, total width",
                      .less = "c",
                      .budget = Budget::upper_bound,
                      .config = dense(base, counts.all * width)});
  }
  const std::size_t count = models.size();
  for (const std::string& name : shape.fp32) {
    models.push_back(in_fp32(std::span(models).first(count), name));
  }
  check_equal_parameters(models);
  return models;
}

void check_equal_parameters(std::span<const ComparedModel> models) {
  const ComparedModel* last = nullptr;
  for (const ComparedModel& model : models) {
    if (model.budget == Budget::total) last = &model;
  }
  DSMOE_CHECK(last != nullptr, "none of {} models has experts", models.size());
  const ModelConfig& base = last->config;
  const ExpertParameters wanted = count_expert_parameters(base, base);
  const auto check = [&](const ComparedModel& model, const char* which, int64_t found,
                         int64_t expected) {
    if (found == expected) return;
    fail(ErrorKind::input,
         "{} has {} {} expert parameters, {} has {} ({}): they must be equal for a comparison",
         model.title, found, which, last->title, expected, percent(found, expected));
  };
  for (const ComparedModel& model : models) {
    const ExpertParameters found = count_expert_parameters(model.config, base);
    if (model.budget != Budget::active) check(model, "total", found.total, wanted.total);
    if (model.budget != Budget::upper_bound) check(model, "active", found.active, wanted.active);
  }
}

Spread spread_of(std::span<const double> values) {
  DSMOE_CHECK(!values.empty(), "no values");
  const auto count = static_cast<double>(values.size());
  Spread spread{.mean = std::accumulate(values.begin(), values.end(), 0.0) / count,
                .lowest = *std::min_element(values.begin(), values.end()),
                .highest = *std::max_element(values.begin(), values.end())};
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
    spread.deviation = std::sqrt(squares / (count - 1));
  }
  return spread;
}

namespace {

// The 97.5 % quantile of Student's t; beyond the table its series about the normal's, right to
// three decimals.
double t_quantile(std::size_t degrees) {
  constexpr std::array<double, 9> kSmall = {12.7062, 4.3027, 3.1824, 2.7764, 2.5706,
                                            2.4469,  2.3646, 2.3060, 2.2622};
  if (degrees <= kSmall.size()) return kSmall[degrees - 1];
  constexpr double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  const auto n = static_cast<double>(degrees);
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

}  // namespace

double half_width_95(const Spread& spread, std::size_t count) {
  if (count < 2) return std::numeric_limits<double>::infinity();
  return t_quantile(count - 1) * spread.deviation / std::sqrt(static_cast<double>(count));
}

}  // namespace dsmoe::train
