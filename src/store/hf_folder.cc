// Opens the files of a model folder, joins their tensors under one name space and compares them
// with a list.
#include "store/hf_folder.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "store/gguf/gguf_file.h"
#include "store/json_cursor.h"
#include "store/tensor_differences.h"

namespace dsmoe::store {
namespace {

namespace fs = std::filesystem;
using tensor::DType;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// A name from outside must not lead out of the folder, nor to a hidden or special file.
void check_plain_name(std::string_view name, std::string_view what) {
  const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
                     name.ends_with(".safetensors");
  if (!plain) {
    fail(ErrorKind::input,
         "{}: the weights of a model are plain *.safetensors files beside the index, found {}",
         what, in_quotes(name));
  }
}

class IndexParser {
 public:
  IndexParser(std::string_view text, std::string_view what) : cursor_(text, what), what_(what) {}

  ShardIndex parse() {
    bool has_metadata = false;
    bool has_map = false;
    cursor_.open_object();
    while (const std::optional<std::string> key = cursor_.next_key()) {
      if (*key == "weight_map") {
        if (std::exchange(has_map, true)) refuse_duplicate(*key);
        parse_map();
        continue;
      }
      if (*key == "metadata" && std::exchange(has_metadata, true)) refuse_duplicate(*key);
      cursor_.skip_value();
    }
    cursor_.finish();
    if (!has_map) fail(ErrorKind::input, "{}: has no \"weight_map\"", what_);
    if (placements_.empty()) fail(ErrorKind::input, "{}: \"weight_map\" is empty", what_);
    return sorted();
  }

 private:
  [[noreturn]] void refuse_duplicate(std::string_view key) const {
    fail(ErrorKind::input, "{}: the key {} appears twice", what_, in_quotes(key));
  }

  void parse_map() {
    cursor_.open_object();
    while (std::optional<std::string> tensor = cursor_.next_key()) {
      if (placements_.size() >= kMaxTensors) {
        fail(ErrorKind::input, "{}: more than {} tensors", what_, kMaxTensors);
      }
      std::string file = cursor_.read_string();
      check_plain_name(file, what_);
      const auto [slot, inserted] = files_.try_emplace(std::move(file), files_.size());
      if (files_.size() > kMaxShards)
        fail(ErrorKind::input, "{}: more than {} files", what_, kMaxShards);
      placements_.push_back({std::move(*tensor), slot->second});
    }
  }

  // Files were numbered as they came; renumber them in the order of their names.
  ShardIndex sorted() {
    ShardIndex index;
    std::vector<std::size_t> rank(files_.size());
    for (const auto& [name, number] : files_) {
      rank[number] = index.files.size();
      index.files.push_back(name);
    }
    for (auto& placement : placements_) placement.file_idx = rank[placement.file_idx];
    std::sort(placements_.begin(), placements_.end(),
              [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
    const auto twin =
        std::adjacent_find(placements_.begin(), placements_.end(),
                           [](const auto& a, const auto& b) { return a.tensor == b.tensor; });
    if (twin != placements_.end()) refuse_duplicate(twin->tensor);
    index.weight_map = std::move(placements_);
    return index;
  }

  JsonCursor cursor_;
  std::string_view what_;
  std::map<std::string, std::size_t> files_;
  std::vector<ShardIndex::Placement> placements_;
};

bool is_weight_type(DType type) {
  return type == DType::F32 || type == DType::BF16 || type == DType::F16;
}

}  // namespace

ShardIndex parse_shard_index(std::string_view text, std::string_view what) {
  return IndexParser(text, what).parse();
}

bool has_weights(const fs::path& model) {
  return gguf::is_gguf(model) || is_listed(model / kSingleName) || is_listed(model / kIndexName);
}

HfFolder HfFolder::open(const fs::path& path) {
  HfFolder folder(path);
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    fail(ErrorKind::input, "{}: expected a model folder, found {}", path.string(),
         fs::exists(path, ignored) ? "a file" : "nothing");
  }
  const bool has_single = is_listed(path / kSingleName);
  const bool has_index = is_listed(path / kIndexName);
  if (has_single && has_index) {
    fail(ErrorKind::input, "{}: has both {} and {}; remove the one that is not the model",
         path.string(), kSingleName, kIndexName);
  }
  if (!has_single && !has_index) {
    const bool has_pickle = fs::exists(path / "pytorch_model.bin", ignored) ||
                            fs::exists(path / "pytorch_model.bin.index.json", ignored);
    fail(ErrorKind::input, "{}: has neither {} nor {}{}", path.string(), kSingleName, kIndexName,
         has_pickle ? "; pytorch_model.bin is not read: convert it to safetensors" : "");
  }
  if (has_single) {
    folder.add_file(kSingleName);
  } else {
    folder.open_shards();
  }
  folder.sort_locations();
  return folder;
}

void HfFolder::add_file(const std::string& name) {
  files_.push_back(SafetensorsFile::open(path_ / name));
  std::size_t total = 0;
  for (const SafetensorsFile& file : files_) total += file.tensors().size();
  if (total > kMaxTensors)
    fail(ErrorKind::input, "{}: more than {} tensors", path_.string(), kMaxTensors);
}

void HfFolder::open_shards() {
  const fs::path index_path = path_ / kIndexName;
  const std::string what = index_path.string();
  const ShardIndex index = parse_shard_index(read_small_file(index_path, kMaxIndexBytes), what);
  std::error_code ignored;
  for (const std::string& name : index.files) {
    if (!fs::exists(path_ / name, ignored)) {
      fail(ErrorKind::input, "{}: the file {} does not exist; is the download complete?", what,
           name);
    }
    add_file(name);
  }
  check_index(index, what);
}

// Both directions: what the index promises is there, and nothing is there that it does not mention.
void HfFolder::check_index(const ShardIndex& index, const std::string& what) const {
  for (const ShardIndex::Placement& placement : index.weight_map) {
    if (files_[placement.file_idx].find(placement.tensor) == nullptr) {
      fail(ErrorKind::input, "{}: tensor {} is not in {}, where the index has it", what,
           in_quotes(placement.tensor), index.files[placement.file_idx]);
    }
  }
  for (std::size_t file_idx = 0; file_idx < files_.size(); ++file_idx) {
    for (const TensorEntry& entry : files_[file_idx].tensors()) {
      const auto found =
          std::lower_bound(index.weight_map.begin(), index.weight_map.end(), entry.name,
                           [](const auto& a, const std::string& name) { return a.tensor < name; });
      if (found == index.weight_map.end() || found->tensor != entry.name ||
          found->file_idx != file_idx) {
        fail(ErrorKind::input, "{}: tensor {} of {} is not in the index", what,
             in_quotes(entry.name), index.files[file_idx]);
      }
    }
  }
}

// Only after the last add_file: entries live in vectors of files_.
void HfFolder::sort_locations() {
  for (std::size_t file_idx = 0; file_idx < files_.size(); ++file_idx) {
    for (const TensorEntry& entry : files_[file_idx].tensors())
      locations_.push_back({&entry, file_idx});
  }
  std::sort(locations_.begin(), locations_.end(),
            [](const Location& a, const Location& b) { return a.entry->name < b.entry->name; });
}

std::vector<std::string_view> HfFolder::names() const {
  std::vector<std::string_view> names;
  names.reserve(locations_.size());
  for (const Location& location : locations_) names.push_back(location.entry->name);
  return names;
}

std::vector<fs::path> HfFolder::files() const {
  std::vector<fs::path> files;
  for (const SafetensorsFile& file : files_) files.push_back(file.path());
  return files;
}

const HfFolder::Location* HfFolder::locate(std::string_view name) const {
  const auto found = std::lower_bound(
      locations_.begin(), locations_.end(), name,
      [](const Location& location, std::string_view key) { return location.entry->name < key; });
  return found != locations_.end() && found->entry->name == name ? &*found : nullptr;
}

const HfFolder::Location& HfFolder::locate_or_fail(std::string_view name) const {
  const Location* location = locate(name);
  if (location == nullptr)
    fail(ErrorKind::input, "{}: has no tensor {}", path_.string(), in_quotes(name));
  return *location;
}

const TensorEntry* HfFolder::find(std::string_view name) const {
  const Location* location = locate(name);
  return location == nullptr ? nullptr : location->entry;
}

const TensorEntry& HfFolder::at(std::string_view name) const { return *locate_or_fail(name).entry; }

std::span<const std::byte> HfFolder::bytes(std::string_view name) const {
  const Location& location = locate_or_fail(name);
  return files_[location.file_idx].bytes(*location.entry);
}

void HfFolder::read(std::string_view name, std::span<std::byte> out, uint64_t offset) const {
  const Location& location = locate_or_fail(name);
  files_[location.file_idx].read(*location.entry, out, offset);
}

uint64_t HfFolder::read_ahead(std::string_view name) const {
  const Location* location = locate(name);
  if (location == nullptr) return 0;
  files_[location->file_idx].read_ahead(*location->entry);
  return location->entry->num_bytes;
}

void HfFolder::release(std::string_view name) const {
  const Location& location = locate_or_fail(name);
  files_[location.file_idx].release(*location.entry);
}

void HfFolder::release(std::string_view name, uint64_t offset, uint64_t count) const {
  const Location& location = locate_or_fail(name);
  files_[location.file_idx].release(*location.entry, offset, count);
}

namespace {

// Layers behind the last that predict tokens further ahead have a matrix that no other layer has.
// Beginnings of the names of their tensors; `known` is sorted.
std::vector<std::string> further_layers(const std::vector<std::string_view>& names,
                                        const std::vector<std::string_view>& known) {
  constexpr std::string_view kOnlyThere = "eh_proj.weight";
  std::vector<std::string> prefixes;
  for (const std::string_view name : names) {
    if (!name.starts_with("model.layers.") || !name.ends_with(kOnlyThere)) continue;
    const std::string_view prefix = name.substr(0, name.size() - kOnlyThere.size());
    const auto first = std::lower_bound(known.begin(), known.end(), prefix);
    if (first == known.end() || !first->starts_with(prefix)) prefixes.emplace_back(prefix);
  }
  return prefixes;
}

}  // namespace

void HfFolder::check(std::span<const tensor::TensorSpec> expected) const {
  TensorDifferences differences;
  std::vector<std::string_view> known;
  known.reserve(expected.size());
  for (const tensor::TensorSpec& spec : expected) {
    known.push_back(spec.name);
    const TensorEntry* entry = find(spec.name);
    if (entry == nullptr) {
      differences.missing(spec);
    } else if (entry->shape != spec.shape) {
      differences.other(spec.name, to_string(spec.shape), to_string(entry->shape));
    } else if (spec.type_rule == tensor::TypeRule::exact && entry->dtype != spec.dtype) {
      differences.other(spec.name, tensor::name_of(spec.dtype), tensor::name_of(entry->dtype));
    } else if (spec.type_rule == tensor::TypeRule::floating && !is_weight_type(entry->dtype)) {
      differences.other(spec.name, "F32, F16 or BF16", tensor::name_of(entry->dtype));
    }
  }
  std::sort(known.begin(), known.end());
  const std::vector<std::string> further = further_layers(names(), known);
  int64_t passed_over = 0;
  for (const Location& location : locations_) {
    const std::string& name = location.entry->name;
    // PyTorch keeps the layers of `n_shared_experts: 0`, as tensors of no rows.
    const bool says_nothing = location.entry->shape.num_elements() == 0;
    if (says_nothing || name.ends_with(".rotary_emb.inv_freq") ||
        std::binary_search(known.begin(), known.end(), name))
      continue;
    if (std::ranges::any_of(further,
                            [&](const auto& prefix) { return name.starts_with(prefix); })) {
      ++passed_over;
      continue;
    }
    differences.extra(name, location.entry->shape);
  }
  differences.throw_if_any(path_.string());
  if (passed_over > 0) {
    log_info("{}: passes over {} tensors of {} layers that predict tokens further ahead (MTP)",
             path_.string(), passed_over, further.size());
  }
}

}  // namespace dsmoe::store
