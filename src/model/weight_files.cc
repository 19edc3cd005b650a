// Chooses the format, and compares what is there with what the configuration needs.
#include "model/weight_files.h"

#include <utility>

#include "base/log.h"
#include "model/gguf_format.h"
#include "store/folder_tensors.h"
#include "store/gguf/gguf_tensors.h"
#include "store/hf_folder.h"

namespace dsmoe::model {
namespace {

// Layers behind the last predict further tokens.
bool is_of_next_layers(const std::string& name, const ModelConfig& config) {
  for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    if (name.starts_with(fmt::format("blk.{}.", config.num_hidden_layers + i))) return true;
  }
  return false;
}

void check_gguf(const store::gguf::File& file, const ModelConfig& config) {
  int64_t further = 0;
  const auto is_passed_over = [&](const store::gguf::TensorEntry& entry) {
    if (is_of_next_layers(entry.name, config)) return ++further > 0;
    return entry.name.ends_with(kGgufSelectionBias) && store::gguf::is_zero(file, entry);
  };
  store::gguf::check_tensors(file, expected_tensors(config), is_passed_over);
  if (further > 0) {
    log_info("{}: passing over {} tensors of layers that predict further tokens", file.what(),
             further);
  }
}

}  // namespace

WeightFiles open_weights(const std::filesystem::path& path, const ModelConfig& config,
                         ThreadPool& pool) {
  if (store::gguf::is_gguf(path)) {
    store::gguf::File file = store::gguf::File::open(path);
    check_gguf(file, config);
    return {.tensors = std::make_unique<store::gguf::GgufTensors>(std::move(file), pool),
            .files = {path}};
  }
  store::HfFolder folder = store::HfFolder::open(path);
  folder.check(expected_tensors(config));
  std::vector<std::filesystem::path> files = folder.files();
  return {.tensors = std::make_unique<store::FolderTensors>(std::move(folder)),
          .files = std::move(files)};
}

}  // namespace dsmoe::model
