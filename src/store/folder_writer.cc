// Splits tensors into shards, writes them into a staging folder, publishes it with one rename.
#include "store/folder_writer.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "store/json_cursor.h"

namespace dsmoe::store {
namespace {

namespace fs = std::filesystem;
using tensor::TensorSpec;

// "out/" and "out/." name the folder "out". What killed writers left beside it goes first, also
// where the target is there.
fs::path free_target(const fs::path& target) {
  fs::path normal = fs::absolute(target).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  remove_leftovers_of(normal);
  std::error_code error;
  if (fs::exists(normal, error) &&
      !(fs::is_directory(normal, error) && fs::is_empty(normal, error))) {
    fail(ErrorKind::input, "{}: already exists; choose another name or remove it", normal.string());
  }
  return normal;
}

std::vector<std::vector<TensorSpec>> split(std::vector<TensorSpec> tensors, uint64_t max_bytes) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  std::vector<std::vector<TensorSpec>> shards(1);
  uint64_t filled = 0;
  for (TensorSpec& spec : tensors) {
    const uint64_t num_bytes = num_bytes_of(spec);
    if (!shards.back().empty() && num_bytes > max_bytes - std::min(filled, max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += num_bytes;
    shards.back().push_back(std::move(spec));
  }
  return shards;
}

}  // namespace

FolderWriter::FolderWriter(const fs::path& target, std::vector<TensorSpec> tensors,
                           uint64_t max_shard_bytes)
    : target_(free_target(target)),
      parent_(target_.parent_path()),
      staging_(target_, HiddenName::Kind::folder) {
  std::vector<std::vector<TensorSpec>> shards = split(std::move(tensors), max_shard_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shard_names_.push_back(
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    for (const TensorSpec& spec : shards[i]) {
      total_bytes_ += num_bytes_of(spec);
      if (!shard_index_.try_emplace(spec.name, i).second) {
        fail(ErrorKind::input, "{}: two tensors are called {}", target_.string(),
             in_quotes(spec.name));
      }
    }
    shards_.emplace_back(staging() / shard_names_.back(), std::move(shards[i]));
  }
}

void FolderWriter::add_file(const std::string& name, std::string_view bytes) {
  DSMOE_CHECK(!name.empty() && name.front() != '.' && name.find('/') == std::string::npos,
              "{} is not a plain name", in_quotes(name));
  atomic_write_file(staging() / name, bytes);
}

SafetensorsWriter& FolderWriter::shard_of(std::string_view name) {
  const auto found = shard_index_.find(name);
  DSMOE_CHECK(found != shard_index_.end(), "tensor {} was not declared for {}", in_quotes(name),
              target_.string());
  return shards_[found->second];
}

std::vector<fs::path> FolderWriter::share(FunctionRef<bool(const std::string&)> is_theirs) {
  std::vector<fs::path> paths;
  for (SafetensorsWriter& shard : shards_) paths.push_back(shard.share(is_theirs));
  return paths;
}

void FolderWriter::seal() {
  if (sealed_) return;
  sealed_ = true;
  for (SafetensorsWriter& shard : shards_) shard.finish();
  if (shards_.size() > 1) {
    Json index = {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", Json::object()}};
    for (const auto& [name, shard] : shard_index_) index["weight_map"][name] = shard_names_[shard];
    add_file("model.safetensors.index.json", index.dump(2) + "\n");
  }
}

void FolderWriter::commit() {
  DSMOE_CHECK(staging_.descriptor() >= 0, "{} is already complete", target_.string());
  seal();
  fsync_folder(staging());
  staging_.rename();
}

}  // namespace dsmoe::store
