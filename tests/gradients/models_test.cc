// Whole tiny models, in double: every parameter tensor's gradient of the whole loss against
// differences of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "gradients/gradient_check.h"
#include "kernels/elements.h"
#include "model/training_pass.h"
#include "tiny_run.h"

namespace dsmoe::testing {
namespace {

struct Kind {
  std::string name;
  model::ModelConfig config;
  model::LossRule rule;
};

// Three packed rows; the second half of one document does not count.
struct Rows {
  std::vector<int32_t> tokens, targets;
  std::vector<int32_t> row_lengths{9, 7, 8, 3};
  std::vector<int32_t> document_lengths{5, 4, 7, 1, 7, 3};

  Rows(int64_t vocab_size, int32_t seed) {
    const int32_t count = std::accumulate(row_lengths.begin(), row_lengths.end(), 0);
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back((i * i * (5 + seed) + 3 * i + 1) % static_cast<int32_t>(vocab_size));
      targets.push_back(i >= 12 && i < 16 ? -1 : (i * 7 + 2) % static_cast<int32_t>(vocab_size));
    }
  }
  model::MicroBatch batch() const { return {tokens, targets, row_lengths, document_lengths}; }
};

class ModelCheck : public GradientCheck {
 public:
  ModelCheck(const Kind& kind, int32_t seed)
      : kind_(kind),
        model_(model::make_model(
            context_, kind.config, weights_,
            {.operand = DType::F64, .passes = moe::Passes::forward_and_backward})),
        buffers_(model::allocate_gradients(
            context_, kind.config, DType::F64, [](const std::string&) { return true; }, arena_)),
        rows_(kind.config.vocab_size, seed),
        pass_(context_, *model_, buffers_.views, kind.rule,
              {.max_tokens = 64, .max_rows = 4, .max_documents = 8}, model::Recompute::nothing) {
    for (const model::NamedGradient& named : buffers_.named) {
      const TensorView stored =
          weights_.tensor(model_->parameters.inventory.parameters[named.parameter]).elements;
      const TensorView value = empty(stored.shape);
      for (int64_t i = 0; i < stored.num_elements(); ++i)
        value.as<double>()[i] = kernels::read_element(stored.data, stored.dtype, i);
      input(named.name, value, Law::accumulated);
    }
  }

  double loss() override {
    for (const model::Placement& placement : model_->parameters.placements) {
      for (const CheckedInput& checked : inputs_) {
        if (checked.name != placement.name) continue;
        model::place_tensor(context_, placement, {.elements = checked.value});
      }
    }
    const model::PassLosses& losses = pass_.run(rows_.batch(), kScale);
    choice_.clear();
    for (const auto& layer : losses.load) choice_.insert(choice_.end(), layer.begin(), layer.end());
    parts_ = {losses.balance, losses.device_balance, losses.z};
    return losses.nats / static_cast<double>(kScale.counted_targets) + losses.balance +
           losses.device_balance + losses.z;
  }
  void backward() override {
    const auto zero = [&](const TensorView& view) {
      if (view) kernels::zero(context_, view.data, view.num_bytes());
    };
    for (const model::NamedGradient& named : buffers_.named) {
      zero(named.gradient);
      zero(named.second_part);
    }
    loss();
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const model::NamedGradient& named = buffers_.named[i];
      double* sum = inputs_[i].gradient.as<double>();
      for (int64_t j = 0; j < inputs_[i].gradient.num_elements(); ++j) {
        sum[j] += named.gradient.as<double>()[j];
        if (named.second_part) sum[j] += named.second_part.as<double>()[j];
      }
    }
  }
  // How many tokens each expert of each layer took.
  std::vector<int64_t> choice() const override { return choice_; }
  // Balance, device and z losses of the last loss().
  const std::vector<double>& parts() const { return parts_; }

 private:
  // Four rows of a step that has eight, so that the scale matters.
  static constexpr model::StepScale kScale{.counted_targets = 41, .num_balance_groups = 4};

  Kind kind_;
  RandomWeights weights_;
  std::unique_ptr<model::Model> model_;
  model::GradientBuffers buffers_;
  Rows rows_;
  model::TrainingPass pass_;
  std::vector<int64_t> choice_;
  std::vector<double> parts_;
};

std::vector<Kind> kinds() {
  const model::LossRule losses{.balance_alpha = 0.3,
                               .device_alpha = 0.2,
                               .num_devices = 3,
                               .z_alpha = 0.1,
                               .rows_per_balance_group = 1};
  model::LossRule language_only;
  model::LossRule by_two_rows = losses;
  by_two_rows.rows_per_balance_group = 2;
  std::vector<Kind> kinds;
  const model::ModelConfig softmax = tiny_config(DType::F32);
  kinds.push_back({"softmax", softmax, losses});
  kinds.push_back({"softmax_language_only", softmax, language_only});
  model::ModelConfig normalised = softmax;
  normalised.norm_topk_prob = true;
  normalised.n_shared_experts = 0;
  normalised.num_key_value_heads = 4;
  normalised.tie_word_embeddings = true;
  kinds.push_back({"softmax_normalised_no_shared_tied", normalised, by_two_rows});
  model::ModelConfig v3 = tiny_v3_config(DType::F32);
  kinds.push_back({"sigmoid_normalised_groups_bias_tied", v3, losses});
  v3.norm_topk_prob = false;
  v3.tie_word_embeddings = false;
  v3.num_key_value_heads = 1;
  kinds.push_back({"sigmoid_not_normalised", v3, by_two_rows});
  return kinds;
}

class ModelGradients : public ::testing::TestWithParam<Kind> {};

// Every tensor of the model. Where a perturbation changes what a router chooses, other tokens are
// taken.
TEST_P(ModelGradients, EqualDifferences) {
  constexpr int64_t kElements = 3;
  Comparison comparison{.choice_changed = true};
  for (int32_t seed = 0; seed < 5 && comparison.choice_changed; ++seed) {
    ModelCheck check(GetParam(), seed);
    comparison = compare_with_differences(check, Damage::none, kElements);
    for (const double part : check.parts()) {
      EXPECT_EQ(part > 0, GetParam().rule.balance_alpha > 0);
    }
  }
  ASSERT_FALSE(comparison.choice_changed) << "every seed lies beside another choice";
  EXPECT_EQ(comparison.report, "");
}

TEST_P(ModelGradients, ControlIsSeen) {
  ModelCheck check(GetParam(), 0);
  const Comparison damaged = compare_with_differences(check, Damage::one_entry, 1);
  std::size_t with_gradient = 0;  // nobody may have chosen an expert
  for (const CheckedInput& input : check.inputs()) {
    const double* values = input.gradient.as<double>();
    if (std::any_of(values, values + input.gradient.num_elements(),
                    [](double value) { return value != 0.5; })) {
      ++with_gradient;
    }
  }
  EXPECT_EQ(damaged.wrong.size(), with_gradient);
  EXPECT_GT(with_gradient, check.inputs().size() * 3 / 4);
}

INSTANTIATE_TEST_SUITE_P(All, ModelGradients, ::testing::ValuesIn(kinds()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace dsmoe::testing
