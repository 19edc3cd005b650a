// The joint between store (names and bytes) and model (parameters).
#include "infer/load_model.h"

#include <algorithm>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "kernels/combine.h"
#include "kernels/table.h"
#include "model/file_layout.h"
#include "model/weight_files.h"
#include "store/gguf/gguf_file.h"
#include "store/packed_image.h"

namespace dsmoe::infer {
namespace {

// Raised whenever equal weights would be laid out in other bytes: kernels/layout.h, kernels/pack.h,
// or the order of stacks in model/inventory.cc. A test holds it to the bytes.
constexpr int kPackingVersion = 3;

// The configuration as bytes: a GGUF file's lies in what is looked at as a source.
std::string config_bytes(const std::filesystem::path& path, const model::ModelConfig& config) {
  if (store::gguf::is_gguf(path)) return config.to_json().dump();
  return read_small_file(path / "config.json", model::kMaxConfigBytes);
}

store::PackedIdentity identity_of(const std::filesystem::path& path,
                                  const model::ModelConfig& config,
                                  const std::vector<std::filesystem::path>& files,
                                  kernels::DType operand) {
  store::PackedIdentity identity{
      .packing = fmt::format("panels {} {}", kPackingVersion, tensor::name_of(operand)),
      .config_sha256 = sha256(config_bytes(path, config))};
  for (const std::filesystem::path& file : files) {
    identity.sources.push_back(store::describe_source(file));
  }
  return identity;
}

// The model of the image, or nothing when there is none that is whole and of these weights.
std::unique_ptr<model::Model> load_packed(const kernels::Context& context,
                                          const model::ModelConfig& config,
                                          const std::filesystem::path& path,
                                          const store::PackedIdentity& identity,
                                          const model::ModelOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return nullptr;
  try {
    auto image = std::make_shared<store::PackedImage>(store::PackedImage::open(path));
    if (const std::string difference = image->difference(identity); !difference.empty()) {
      log_info("{}: {}; packing the weights again", path.string(), difference);
      return nullptr;
    }
    image->load(*context.pool);
    return model::make_packed_model(context, config, {image->blocks(), image}, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input && error.kind() != ErrorKind::io) throw;
    log_warning("{}; packing the weights again", error.what());
    return nullptr;
  }
}

void save_packed(const model::Model& model, const std::filesystem::path& path,
                 const store::PackedIdentity& identity) {
  try {
    log_info("{}: writing the packed weights, {:.1f} MiB", path.string(),
             static_cast<double>(model.weights.total_bytes()) / (1 << 20));
    store::write_packed_image(path, identity, model.weights.blocks());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::io) throw;
    log_warning("{}; going on without --cache", error.what());
  }
}

}  // namespace

std::filesystem::path packed_image_path(const std::filesystem::path& model,
                                        kernels::DType operand) {
  const char* name = operand == kernels::DType::BF16 ? "packed-bf16.dsmoe" : "packed-fp32.dsmoe";
  if (!store::gguf::is_gguf(model)) return model / name;
  return std::filesystem::path(model) += std::string(".") + name;
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
  const int64_t most = std::min(config.num_selectable_experts(), kernels::kMaxExpertsPerToken);
  if (asked < 1 || asked > most) {
    fail(ErrorKind::input, "{} experts per token were asked for; this model can choose 1 to {}",
         asked, most);
  }
  return asked;
}

std::unique_ptr<model::Model> load_model(const kernels::Context& context,
                                         const std::filesystem::path& folder,
                                         const LoadOptions& options) {
  const model::ModelConfig config = model::read_config(folder);
  model::WeightFiles weights = model::open_weights(folder, config, *context.pool);
  if (config.torch_dtype == kernels::DType::F16 && !options.operand) {
    log_info("{}: stored in F16; computing in BF16", folder.string());
  }
  if (config.quantization && options.passes != moe::Passes::forward) {
    fail(ErrorKind::input, "{}: a quantised model cannot be trained; use the one it was made from",
         folder.string());
  }
  const model::ModelOptions model_options{
      .operand = options.operand.value_or(default_operand(config)),
      .context = options.context,
      .passes = options.passes};
  const bool cached = options.cache == PackedCache::beside_model;
  if (cached &&
      (context.table->device != kernels::Device::cpu || options.passes != moe::Passes::forward)) {
    fail(ErrorKind::usage,
         "--cache keeps weights as the CPU packs them for inference; leave it out");
  }
  const std::filesystem::path path = packed_image_path(folder, model_options.operand);
  store::PackedIdentity identity;
  if (cached) {
    remove_leftovers_of(path);  // an image that is good enough is never written again
    identity = identity_of(folder, config, weights.files, model_options.operand);
    if (auto model = load_packed(context, config, path, identity, model_options)) return model;
  }
  model::FileParameters source(std::move(weights.tensors), config, *context.pool);
  auto model = model::make_model(context, config, source, model_options);
  if (cached) save_packed(*model, path, identity);
  return model;
}

}  // namespace dsmoe::infer
