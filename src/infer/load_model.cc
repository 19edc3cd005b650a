// The joint between store (names and bytes) and model (parameters).
#include "infer/load_model.h"

#include <cstring>

#include "base/log.h"
#include "base/mapped_file.h"
#include "store/hf_folder.h"

namespace dsmoe::infer {
namespace {

class FolderSource : public tensor::TensorSource {
 public:
  FolderSource(const store::HfFolder& folder, const model::Quantization& quantization)
      : folder_(folder), quantization_(quantization) {}

  tensor::TensorView tensor(const std::string& name) override {
    const store::TensorEntry& entry = folder_.at(name);
    // Mapped read-only: consumers of a source only read.
    auto* data = const_cast<std::byte*>(folder_.bytes(name).data());
    const tensor::TensorView view{.data = data, .dtype = entry.dtype, .shape = entry.shape};
    if (name.ends_with(kScaleSuffix)) check_scales(name, view);
    return view;
  }
  void release(const std::string& name) override { folder_.release(name); }
  void release_rows(const std::string& name, int64_t begin, int64_t end) override {
    const store::TensorEntry& entry = folder_.at(name);
    const auto row_bytes = entry.num_bytes / static_cast<uint64_t>(entry.shape[0]);
    folder_.release(name, static_cast<uint64_t>(begin) * row_bytes,
                    static_cast<uint64_t>(end - begin) * row_bytes);
  }

 private:
  static constexpr std::string_view kScaleSuffix = "_scale";

  void check_scales(const std::string& name, const tensor::TensorView& scales) const {
    const tensor::WeightCoding coding = coding_of(
        quantization_, std::string_view(name).substr(0, name.size() - kScaleSuffix.size()));
    const auto* bytes = static_cast<const std::byte*>(scales.data);
    for (int64_t i = 0; i < scales.num_elements(); ++i) {
      tensor::Bf16 scale{};
      std::memcpy(&scale, bytes + 2 * i, sizeof scale);
      if (tensor::is_valid_scale(coding, scale)) continue;
      const int64_t groups = scales.dim(1);
      fail(ErrorKind::input, "{}: {}: the scale of row {}, group {} is {}; scales of {} are {}",
           folder_.path().string(), name, i / groups, i % groups, tensor::to_float(scale),
           tensor::name_of(coding), tensor::scale_rule(coding));
    }
  }

  const store::HfFolder& folder_;
  model::Quantization quantization_;
};

}  // namespace

model::ModelConfig read_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  return model::parse_config(read_small_file(path, model::kMaxConfigBytes), path.string());
}

kernels::DType default_operand(const model::ModelConfig& config) {
  return config.torch_dtype == kernels::DType::F32 ? kernels::DType::F32 : kernels::DType::BF16;
}

int64_t checked_top_k(const model::ModelConfig& config, int64_t asked) {
  if (asked == 0) return config.num_experts_per_tok;
  if (config.num_moe_layers() == 0) {
    fail(ErrorKind::input, "{} experts per token were asked for, but the model has no MoE layer",
         asked);
  }
  const bool grouped = config.topk_method != model::TopkMethod::greedy;
  const int64_t most = grouped ? config.n_routed_experts / config.n_group * config.topk_group
                               : config.n_routed_experts;
  if (asked < 1 || asked > most) {
    fail(ErrorKind::input, "{} experts per token were asked for; this model can choose 1 to {}",
         asked, most);
  }
  return asked;
}

std::unique_ptr<model::Model> load_model(const kernels::Context& context,
                                         const std::filesystem::path& folder,
                                         const LoadOptions& options) {
  const model::ModelConfig config = read_config(folder);
  const store::HfFolder weights = store::HfFolder::open(folder);
  weights.check(model::expected_tensors(config));
  if (config.torch_dtype == kernels::DType::F16 && !options.operand) {
    log_info("{}: stored in F16; computing in BF16", folder.string());
  }
  if (config.quantization && options.passes != moe::Passes::forward) {
    fail(ErrorKind::input, "{}: a quantised model cannot be trained; use the one it was made from",
         folder.string());
  }
  FolderSource source(weights, config.quantization);
  return model::make_model(context, config, source,
                           {.operand = options.operand.value_or(default_operand(config)),
                            .context = options.context,
                            .passes = options.passes});
}

}  // namespace dsmoe::infer
