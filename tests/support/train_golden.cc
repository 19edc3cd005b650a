// Packed rows of the goldens as micro-batches.
#include "support/train_golden.h"

#include <algorithm>
#include <cstring>

#include "kernels/elements.h"

namespace dsmoe::testing {
namespace {

// What the goldens write for a target that is not counted.
constexpr int32_t kIgnored = -100;

}  // namespace

std::vector<std::string> training_golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(goldens_folder())) {
    if (std::filesystem::exists(entry.path() / "train.safetensors"))
      names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TrainingGolden::TrainingGolden(const std::string& name)
    : folder_(goldens_folder() / name),
      file_(store::SafetensorsFile::open(folder_ / "train.safetensors")) {}

std::vector<double> TrainingGolden::values(const std::string& tensor) const {
  const store::TensorEntry& entry = file_.at(tensor);
  std::vector<double> values(entry.shape.num_elements());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        kernels::read_element(file_.bytes(entry).data(), entry.dtype, static_cast<int64_t>(i));
  }
  return values;
}

TrainingGolden::Rows TrainingGolden::rows(int64_t step, int64_t begin, int64_t end) const {
  const auto integers = [&](const std::string& name) {
    std::vector<int32_t> all(file_.at(name).shape.num_elements());
    std::memcpy(all.data(), file_.bytes(file_.at(name)).data(), all.size() * sizeof(int32_t));
    return all;
  };
  const std::vector<int32_t> tokens = integers("tokens");
  const std::vector<int32_t> targets = integers("targets");
  const std::vector<int32_t> documents = integers("documents");
  const int64_t length = file_.at("tokens").shape[2];
  Rows rows;
  for (int64_t row = begin; row < end; ++row) {
    int32_t previous = -1;
    rows.row_lengths.push_back(0);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t place = (step * num_rows() + row) * length + i;
      if (documents[place] < 0) continue;
      if (documents[place] != previous) rows.document_lengths.push_back(0);
      previous = documents[place];
      ++rows.document_lengths.back();
      ++rows.row_lengths.back();
      rows.tokens.push_back(tokens[place]);
      rows.targets.push_back(targets[place] == kIgnored ? -1 : targets[place]);
    }
  }
  return rows;
}

int64_t TrainingGolden::Rows::num_counted() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

TrainingSetup::TrainingSetup(const kernels::Context& context, const TrainingGolden& golden,
                             tensor::DType operand, model::Recompute recompute)
    : model_(infer::load_model(context, golden.folder(),
                               {.operand = operand, .passes = moe::Passes::forward_and_backward})),
      gradients_(model::allocate_gradients(
          context, model_->config, operand, [](const std::string&) { return true; }, arena_)),
      rows_per_balance_group_(static_cast<int64_t>(golden.metadata("balance_group"))) {
  const int64_t tokens = golden.num_rows() * 64;
  pass_ = std::make_unique<model::TrainingPass>(
      context, *model_, gradients_.views,
      model::LossRule{.balance_alpha = model_->config.aux_loss_alpha,
                      .z_alpha = golden.metadata("z_loss"),
                      .rows_per_balance_group = rows_per_balance_group_},
      model::TrainingPass::Limits{
          .max_tokens = tokens, .max_rows = golden.num_rows(), .max_documents = tokens},
      recompute);
}

StepLosses TrainingSetup::run_step(const TrainingGolden& golden, int64_t step,
                                   int64_t rows_per_micro_batch) {
  const int64_t num_rows = golden.num_rows();
  const int64_t counted = golden.rows(step, 0, num_rows).num_counted();
  const model::StepScale scale{.counted_targets = counted,
                               .num_balance_groups = num_rows / rows_per_balance_group_};
  StepLosses total;
  for (int64_t begin = 0; begin < num_rows; begin += rows_per_micro_batch) {
    const TrainingGolden::Rows rows = golden.rows(step, begin, begin + rows_per_micro_batch);
    const model::PassLosses losses = pass_->run(rows.batch(), scale);
    total.language += losses.nats / static_cast<double>(counted);
    total.balance += losses.balance;
    total.z += losses.z;
  }
  return total;
}

std::vector<double> total_gradient(const model::NamedGradient& named) {
  std::vector<double> sum = to_double(named.gradient);
  if (named.second_part) {
    const std::vector<double> second = to_double(named.second_part);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += second[i];
  }
  return sum;
}

}  // namespace dsmoe::testing
