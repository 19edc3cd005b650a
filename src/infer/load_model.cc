// The joint between store (names and bytes) and model (parameters).
#include "infer/load_model.h"

#include "base/log.h"
#include "store/hf_folder.h"

namespace dsmoe::infer {
namespace {

class FolderSource : public tensor::TensorSource {
 public:
  explicit FolderSource(const store::HfFolder& folder) : folder_(folder) {}

  tensor::TensorView tensor(const std::string& name) override {
    const store::TensorEntry& entry = folder_.at(name);
    // Mapped read-only: consumers of a source only read.
    auto* data = const_cast<std::byte*>(folder_.bytes(name).data());
    return {.data = data, .dtype = entry.dtype, .shape = entry.shape};
  }
  void release(const std::string& name) override { folder_.release(name); }

 private:
  const store::HfFolder& folder_;
};

}  // namespace

model::ModelConfig read_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  return model::parse_config(store::read_small_file(path, model::kMaxConfigBytes), path.string());
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
  FolderSource source(weights);
  return model::make_model(context, config, source,
                           {.operand = options.operand.value_or(default_operand(config)),
                            .context = options.context,
                            .passes = options.passes});
}

}  // namespace dsmoe::infer
