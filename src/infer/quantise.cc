// Reads rows, quantises them on all threads, measures what was lost, writes them.
#include "infer/quantise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "kernels/elements.h"
#include "store/folder_writer.h"
#include "store/hf_folder.h"
#include "text/tokenizer_config.h"

namespace dsmoe::infer {
namespace {

namespace fs = std::filesystem;
using model::Parameter;
using tensor::TensorSpec;
using tensor::WeightCoding;

constexpr int64_t kPieceElements = int64_t{1} << 21;
constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;

// What stands beside the weights for those who read text.
constexpr std::string_view kTemplate = "chat_template.jinja";
constexpr std::string_view kTextFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    kTemplate,        "generation_config.json"};

class Quantiser {
 public:
  Quantiser(const kernels::Context& context, const store::HfFolder& folder,
            store::FolderWriter& writer)
      : context_(context), folder_(folder), writer_(writer) {}

  void copy(const std::string& name) {
    const store::TensorEntry& entry = folder_.at(name);
    for (uint64_t done = 0; done < entry.num_bytes; done += bytes_.size()) {
      bytes_.resize(std::min<uint64_t>(entry.num_bytes - done, uint64_t{4} * kPieceElements));
      folder_.read(name, bytes_, done);
      writer_.write(name, bytes_);
    }
  }

  QuantisedTensor quantise(const Parameter& parameter) {
    const int64_t rows = parameter.shape[0];
    const int64_t step =
        std::max<int64_t>(1, kPieceElements / std::max<int64_t>(1, parameter.shape[1]));
    Sums sums;
    for (int64_t begin = 0; begin < rows; begin += step) {
      quantise_rows(parameter, begin, std::min(rows, begin + step), sums);
    }
    return {parameter, sums.original > 0 ? std::sqrt(sums.lost / sums.original) : 0};
  }

 private:
  struct Sums {
    double lost = 0, original = 0;  // squares
  };

  void quantise_rows(const Parameter& parameter, int64_t begin, int64_t end, Sums& sums) {
    const WeightCoding coding = parameter.coding;
    const store::TensorEntry& entry = folder_.at(parameter.name);
    const int64_t k = parameter.shape[1];
    const int64_t row_bytes = k * static_cast<int64_t>(tensor::size_of(entry.dtype));
    const int64_t coded_bytes = tensor::coded_row_bytes(coding, k);
    const int64_t groups = tensor::num_groups(k);
    const int64_t count = end - begin;
    bytes_.resize(static_cast<std::size_t>(count * row_bytes));
    folder_.read(parameter.name, bytes_, static_cast<uint64_t>(begin * row_bytes));
    integers_.resize(static_cast<std::size_t>(count * coded_bytes));
    scales_.resize(static_cast<std::size_t>(count * groups));
    std::vector<Sums> of_row(static_cast<std::size_t>(count));
    parallel_for(*context_.pool, count, 1, [&](int64_t first, int64_t last) {
      std::vector<float> row(static_cast<std::size_t>(k));
      for (int64_t r = first; r < last; ++r) {
        for (int64_t i = 0; i < k; ++i) {
          row[static_cast<std::size_t>(i)] = static_cast<float>(
              kernels::read_element(bytes_.data() + r * row_bytes, entry.dtype, i));
        }
        check(parameter, begin + r, row);
        auto* coded = integers_.data() + r * coded_bytes;
        tensor::Bf16* scales = scales_.data() + r * groups;
        tensor::quantise_row(coding, row.data(), k, coded, scales);
        of_row[static_cast<std::size_t>(r)] = loss_of(coding, row, coded, scales);
      }
    });
    for (const Sums& row : of_row) {
      sums.lost += row.lost;
      sums.original += row.original;
    }
    writer_.write(parameter.name, integers_);
    writer_.write(tensor::scale_name(parameter.name), std::as_bytes(std::span(scales_)));
  }

  // Scales stay below 2^100; no weight of a working model comes near.
  void check(const Parameter& parameter, int64_t row, const std::vector<float>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::fabs(values[i]) < 0x1p100f) continue;
      fail(ErrorKind::input, "{}: {}[{}, {}] is {}; weights must be finite and below 2^100",
           folder_.path().string(), parameter.name, row, i, values[i]);
    }
  }

  static Sums loss_of(WeightCoding coding, const std::vector<float>& row, const std::byte* coded,
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

  const kernels::Context& context_;
  const store::HfFolder& folder_;
  store::FolderWriter& writer_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> integers_;
  std::vector<tensor::Bf16> scales_;
};

}  // namespace

Outcome quantise_folder(const kernels::Context& context, const fs::path& source,
                        const fs::path& target, const QuantiseOptions& options,
                        FunctionRef<void(const QuantisedTensor& tensor)> report) {
  const model::ModelConfig config = model::read_config(source);
  if (config.quantization) {
    fail(ErrorKind::input, "{}: the weights are {} already; quantise the model they were made from",
         source.string(), tensor::name_of(config.quantization.projections));
  }
  const store::HfFolder folder = store::HfFolder::open(source);
  folder.check(model::expected_tensors(config));

  model::ModelConfig quantised = config;
  quantised.quantization = options.quantization;
  if (config.tie_word_embeddings) quantised.quantization.head = WeightCoding::plain;
  quantised.torch_dtype = tensor::DType::BF16;
  std::vector<TensorSpec> written = model::expected_tensors(quantised);
  for (TensorSpec& spec : written) {
    if (spec.type_rule == tensor::TypeRule::floating) spec.dtype = folder.at(spec.name).dtype;
  }
  store::FolderWriter writer(target, std::move(written));
  writer.add_file("config.json", quantised.to_json().dump(2) + "\n");
  std::error_code ignored;
  for (const std::string_view name : kTextFiles) {
    if (!fs::is_regular_file(source / name, ignored)) continue;
    std::string bytes = read_small_file(source / name, kMaxFileBytes);
    if (name == text::kTokenizerConfigFile && fs::is_regular_file(source / kTemplate, ignored)) {
      bytes = text::with_chat_template(bytes, (source / name).string(),
                                       read_small_file(source / kTemplate, kMaxFileBytes));
    }
    writer.add_file(std::string(name), std::move(bytes));
  }
  Quantiser quantiser(context, folder, writer);
  for (const Parameter& parameter : model::inventory(quantised).parameters) {
    if (options.cancelled != nullptr && options.cancelled->load()) return Outcome::cancelled;
    if (parameter.coding == WeightCoding::plain) {
      quantiser.copy(parameter.name);
    } else {
      report(quantiser.quantise(parameter));
    }
  }
  writer.commit();
  return Outcome::done;
}

}  // namespace dsmoe::infer
