// The checkpoint names its data; the folder of tokens is named after that.
#include "report/run_text.h"

#include <string>
#include <vector>

#include "base/json.h"
#include "report/comparison_folder.h"
#include "store/checkpoint.h"
#include "store/safetensors.h"
#include "train/run_record.h"

namespace dsmoe::report {
namespace {

namespace fs = std::filesystem;

// What the run's checkpoint calls its data.
std::string data_identity(const fs::path& checkpoint) {
  std::error_code ignored;
  if (!fs::exists(checkpoint / store::kTrainStateName, ignored)) return "";
  const auto file = store::SafetensorsFile::open(checkpoint / store::kTrainStateName);
  const auto found = file.metadata().find("identity");
  if (found == file.metadata().end()) return "";
  const Json identity = parse_json(found->second, file.path().string());
  const auto data = identity.is_object() ? identity.find("data") : identity.end();
  return data != identity.end() && data->is_string() ? data->get<std::string>() : "";
}

// Where token shards of a run may lie: in its own cache, in that of the comparison around it, or
// where --cache put them.
std::vector<fs::path> caches_of(const fs::path& run) {
  std::vector<fs::path> places{run / "cache"};
  const fs::path parent = fs::weakly_canonical(run).parent_path();
  if (fs::exists(parent / kCompareFile)) places.push_back(parent / "cache");
  if (const auto record = train::RunRecord::read_if_whole(run)) {
    const OrderedJson named = record->options().value("--cache", OrderedJson());
    if (named.is_string()) places.emplace_back(named.get<std::string>());
  }
  return places;
}

// A cache may hold others: the data's identity begins with the key that is the folder's name.
std::optional<fs::path> cached_tokens(const fs::path& run, const std::string& identity) {
  constexpr std::size_t kKeyDigits = 16;
  const std::string name = "tokens-" + identity.substr(0, kKeyDigits);
  std::error_code ignored;
  for (const fs::path& place : caches_of(run)) {
    if (fs::is_directory(place / name, ignored)) return place / name;
  }
  return std::nullopt;
}

}  // namespace

std::optional<RunText> text_of_run(const fs::path& run, const fs::path& checkpoint,
                                   const data::Encoder& encoder, const TextLimits& limits) {
  const std::string identity = data_identity(checkpoint);
  if (identity.empty()) return std::nullopt;
  if (identity.starts_with("demo,")) {
    return RunText{.text = embedded_text(encoder, limits), .is_embedded = true};
  }
  const std::optional<fs::path> shards = cached_tokens(run, identity);
  if (!shards) return std::nullopt;
  const data::ShardCorpus corpus(*shards, data::ShardCheck::structure);
  if (corpus.vocab_size() != encoder.vocab_size || corpus.tokenizer_hash() != encoder.hash) {
    return std::nullopt;
  }
  return RunText{.text = text_of_corpus(corpus, limits)};
}

}  // namespace dsmoe::report
