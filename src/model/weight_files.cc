// Chooses the format, and compares what is there with what the configuration needs.
#include "model/weight_files.h"

#include <utility>

#include "model/gguf_format.h"
#include "store/folder_tensors.h"
#include "store/gguf/gguf_tensors.h"
#include "store/hf_folder.h"

namespace dsmoe::model {

WeightFiles open_weights(const std::filesystem::path& path, const ModelConfig& config,
                         ThreadPool& pool) {
  if (store::gguf::is_gguf(path)) {
    store::gguf::File file = store::gguf::File::open(path);
    store::gguf::check_tensors(file, expected_tensors(config), kGgufSelectionBias);
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
