// Reads rows, quantises them on all threads, measures what was lost, writes them.
#include "infer/quantise.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "base/function_ref.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "kernels/elements.h"
#include "model/file_layout.h"
#include "model/weight_files.h"
#include "store/folder_writer.h"
#include "text/text_files.h"
#include "text/tokenizer/tokenizer_config.h"

namespace dsmoe::infer {
namespace {

namespace fs = std::filesystem;
using model::Parameter;
using tensor::TensorSpec;
using tensor::TensorView;
using tensor::WeightCoding;

constexpr int64_t kPieceElements = int64_t{1} << 21;
constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;

// What stands beside the weights for those who read text.
constexpr std::string_view kTemplate = "chat_template.jinja";
constexpr std::string_view kTextFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    kTemplate,        "generation_config.json"};

struct Sums {
  double lost = 0, original = 0;  // squares
};

// Scales stay below 2^100; no weight of a working model comes near.
void check(const std::string& source, const Parameter& parameter, int64_t row,
           const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::fabs(values[i]) < 0x1p100f) continue;
    fail(ErrorKind::input, "{}: {}[{}, {}] is {}; weights must be finite and below 2^100", source,
         parameter.name, row, i, values[i]);
  }
}

Sums loss_of(WeightCoding coding, const std::vector<float>& row, const std::byte* coded,
             const tensor::Bf16* scales) {
  Sums sums;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto k = static_cast<int64_t>(i);
    const double w = row[i];
    const double kept = tensor::to_float(tensor::dequantise(
        scales[k / tensor::kGroupSize], tensor::coded_element(coding, coded, k)));
    sums.lost += (w - kept) * (w - kept);
    sums.original += w * w;
  }
  return sums;
}

// Rows of a weight as integers and scales.
struct CodedRows {
  std::vector<std::byte> integers;
  std::vector<tensor::Bf16> scales;

  // Rows from `begin` on of what becomes `parameter`; on all threads. What was lost.
  Sums code(const kernels::Context& context, const std::string& source, const Parameter& parameter,
            const TensorView& rows, int64_t begin) {
    const WeightCoding coding = parameter.coding;
    const int64_t k = parameter.shape[1];
    const auto* bytes = static_cast<const std::byte*>(rows.data);
    const int64_t row_bytes = k * static_cast<int64_t>(tensor::size_of(rows.dtype));
    const int64_t coded_bytes = tensor::coded_row_bytes(coding, k);
    const int64_t groups = tensor::num_groups(k);
    const int64_t count = rows.dim(0);
    integers.resize(static_cast<std::size_t>(count * coded_bytes));
    scales.resize(static_cast<std::size_t>(count * groups));
    std::vector<Sums> of_row(static_cast<std::size_t>(count));
    parallel_for(*context.pool, count, 1, [&](int64_t first, int64_t last) {
      std::vector<float> row(static_cast<std::size_t>(k));
      for (int64_t r = first; r < last; ++r) {
        for (int64_t i = 0; i < k; ++i) {
          row[static_cast<std::size_t>(i)] =
              static_cast<float>(kernels::read_element(bytes + r * row_bytes, rows.dtype, i));
        }
        check(source, parameter, begin + r, row);
        auto* coded = integers.data() + r * coded_bytes;
        tensor::Bf16* its_scales = scales.data() + r * groups;
        tensor::quantise_row(coding, row.data(), k, coded, its_scales);
        of_row[static_cast<std::size_t>(r)] = loss_of(coding, row, coded, its_scales);
      }
    });
    Sums sums;
    for (const Sums& row : of_row) {
      sums.lost += row.lost;
      sums.original += row.original;
    }
    return sums;
  }
};

class Quantiser {
 public:
  Quantiser(const kernels::Context& context, std::string source_name,
            model::ParameterSource& source, store::FolderWriter& writer)
      : context_(context), source_name_(std::move(source_name)), source_(source), writer_(writer) {}

  void copy(const Parameter& parameter) {
    for_rows(parameter, [&](const TensorView& rows, int64_t) {
      writer_.write(parameter.name, {static_cast<const std::byte*>(rows.data), rows.num_bytes()});
    });
  }

  // `coded` is what becomes of `parameter`.
  QuantisedTensor quantise(const Parameter& parameter, const Parameter& coded) {
    Sums sums;
    for_rows(parameter, [&](const TensorView& rows, int64_t begin) {
      quantise_rows(coded, rows, begin, sums);
    });
    return {coded, sums.original > 0 ? std::sqrt(sums.lost / sums.original) : 0};
  }

 private:
  // Calls f(rows, first row) for some rows at a time.
  void for_rows(const Parameter& parameter, FunctionRef<void(const TensorView&, int64_t)> f) {
    const TensorView all = source_.tensor(parameter).elements;
    const int64_t rows = all.dim(0);
    const int64_t columns = std::max<int64_t>(1, all.num_elements() / std::max<int64_t>(1, rows));
    const int64_t step = std::max<int64_t>(1, kPieceElements / columns);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t end = std::min(rows, begin + step);
      f(all.rows(begin, end), begin);
      source_.release_rows(parameter, begin, end);
    }
    source_.release(parameter);
  }

  void quantise_rows(const Parameter& parameter, const TensorView& rows, int64_t begin,
                     Sums& sums) {
    const Sums own = rows_.code(context_, source_name_, parameter, rows, begin);
    sums.lost += own.lost;
    sums.original += own.original;
    writer_.write(parameter.name, rows_.integers);
    writer_.write(tensor::scale_name(parameter.name), std::as_bytes(std::span(rows_.scales)));
  }

  const kernels::Context& context_;
  std::string source_name_;  // in messages
  model::ParameterSource& source_;
  store::FolderWriter& writer_;
  CodedRows rows_;
};

// A folder's parameters as what a quantised model has of them.
class QuantisedParameters : public model::ParameterSource {
 public:
  QuantisedParameters(const kernels::Context& context, std::string source_name,
                      model::ParameterSource& base, const model::Inventory& before)
      : context_(context), source_name_(std::move(source_name)), base_(base) {
    for (const Parameter& parameter : before.parameters) plain_.emplace(parameter.name, &parameter);
  }

  model::StoredTensor tensor(const Parameter& parameter) override {
    const Parameter& plain = *plain_.at(parameter.name);
    const model::StoredTensor stored = base_.tensor(plain);
    if (parameter.coding == WeightCoding::plain) return stored;
    rows_.code(context_, source_name_, parameter, stored.elements, stored.row_begin);
    base_.release(plain);
    const int64_t count = stored.elements.dim(0), k = parameter.shape[1];
    return {.elements = {.data = rows_.integers.data(),
                         .dtype = tensor::stored_type(parameter.coding),
                         .shape = {count, tensor::coded_row_bytes(parameter.coding, k)}},
            .scale = {.data = rows_.scales.data(),
                      .dtype = tensor::DType::BF16,
                      .shape = {count, tensor::num_groups(k)}},
            .row_begin = stored.row_begin};
  }
  void release(const Parameter& parameter) override {
    if (parameter.coding == WeightCoding::plain) base_.release(*plain_.at(parameter.name));
  }

 private:
  const kernels::Context& context_;
  std::string source_name_;
  model::ParameterSource& base_;
  std::map<std::string, const Parameter*> plain_;
  CodedRows rows_;
};

// The configuration behind the quantisation; refused where it is quantised already.
model::ModelConfig quantised_config(const model::ModelConfig& config, const fs::path& source,
                                    const model::Quantization& wanted) {
  if (config.quantization) {
    fail(ErrorKind::input, "{}: the weights are {} already; quantise the model they were made from",
         source.string(), tensor::name_of(config.quantization.projections));
  }
  model::ModelConfig quantised = config;
  quantised.quantization = wanted;
  if (config.tie_word_embeddings) quantised.quantization.head = WeightCoding::plain;
  quantised.torch_dtype = tensor::DType::BF16;
  return quantised;
}

// What is not quantised keeps the type its files have.
std::vector<TensorSpec> specs_of(const model::ModelConfig& quantised,
                                 const model::Inventory& before, const model::Inventory& after,
                                 model::ParameterSource& source) {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < after.parameters.size(); ++i) {
    for (TensorSpec& spec : model::stored_specs(quantised, after.parameters[i])) {
      if (spec.type_rule == tensor::TypeRule::floating) {
        spec.dtype = source.tensor(before.parameters[i]).elements.dtype;
      }
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

}  // namespace

Outcome quantise_folder(const kernels::Context& context, const fs::path& source,
                        const fs::path& target, const QuantiseOptions& options,
                        FunctionRef<void(const QuantisedTensor& tensor)> report) {
  const model::ModelConfig config = model::read_config(source);
  const model::ModelConfig quantised = quantised_config(config, source, options.quantization);
  model::FileParameters parameters(model::open_weights(source, config, *context.pool).tensors,
                                   config, *context.pool);
  const model::Inventory before = model::inventory(config), after = model::inventory(quantised);
  store::FolderWriter writer(target, specs_of(quantised, before, after, parameters));
  writer.add_file("config.json", quantised.to_json().dump(2) + "\n");
  for (const std::string_view name : kTextFiles) {
    auto file = text::read_text_file(source, name, kMaxFileBytes);
    if (!file) continue;
    if (name == text::kTokenizerConfigFile) {
      if (const auto chat = text::read_text_file(source, kTemplate, kMaxFileBytes)) {
        file->bytes = text::with_chat_template(file->bytes, file->what, chat->bytes);
      }
    }
    writer.add_file(std::string(name), std::move(file->bytes));
  }
  Quantiser quantiser(context, source.string(), parameters, writer);
  for (std::size_t i = 0; i < after.parameters.size(); ++i) {
    if (options.cancelled != nullptr && options.cancelled->load()) return Outcome::cancelled;
    if (after.parameters[i].coding == WeightCoding::plain) {
      quantiser.copy(before.parameters[i]);
    } else {
      report(quantiser.quantise(before.parameters[i], after.parameters[i]));
    }
  }
  writer.commit();
  return Outcome::done;
}

std::unique_ptr<model::Model> load_quantised(const kernels::Context& context,
                                             const fs::path& source,
                                             const model::Quantization& quantization,
                                             const LoadOptions& options) {
  const model::ModelConfig config = model::read_config(source);
  const model::ModelConfig quantised = quantised_config(config, source, quantization);
  model::FileParameters base(model::open_weights(source, config, *context.pool).tensors, config,
                             *context.pool);
  const model::Inventory before = model::inventory(config);
  QuantisedParameters parameters(context, source.string(), base, before);
  return model::make_model(context, quantised, parameters,
                           {.operand = options.operand.value_or(default_operand(quantised)),
                            .context = options.context});
}

}  // namespace dsmoe::infer
