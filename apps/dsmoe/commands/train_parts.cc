// Corpora, their sources, and the split into training and validation.
#include "commands/train_parts.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "commands/run_session.h"
#include "data/content_hash.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

data::BuiltCorpus build(const TrainOptions& options, const std::vector<data::NamedSource>& sources,
                        const train::RunTokenizer& tokenizer, const std::atomic<bool>* cancelled) {
  train::CorpusRequest request{
      .inputs = {},
      .cache = options.cache.empty() ? options.run.out / "cache" : fs::path(options.cache),
      .separator = options.separator,
      .keys = options.keys,
      .cancelled = cancelled};
  for (const data::NamedSource& source : sources) {
    for (const fs::path& file : source.files) {
      request.inputs.push_back({.path = file, .label = source.name});
    }
  }
  return train::prepare_corpus(request, tokenizer, options.run.config);
}

// As given, so that their sum is one.
std::vector<double> shares_of(const std::vector<data::NamedSource>& sources) {
  std::vector<double> shares;
  if (!sources.front().weight) return shares;
  for (const data::NamedSource& source : sources) shares.push_back(*source.weight);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

// A key made of all tokens and of where documents end.
uint64_t key_of(const data::TokenCorpus& corpus) {
  data::ContentHash hash;
  for (int64_t document = 0; document < corpus.num_documents(); ++document) {
    const std::vector<int32_t> tokens = data::all_tokens(corpus, document);
    hash.update_u64(tokens.size());
    hash.update(std::as_bytes(std::span(tokens)));
  }
  return hash.value();
}

double fraction_of(const TrainOptions& options) {
  constexpr double kUsual = 0.05;
  if (options.valid_fraction >= 0) return options.valid_fraction;
  return options.valid_data.empty() ? kUsual : 0;
}

// Warns of such files: a loss on text that was trained on says nothing about other text.
void tell_of_shared(const std::vector<data::CorpusFile>& training,
                    const std::vector<data::CorpusFile>& validation) {
  for (const data::CorpusFile& file : validation) {
    const bool is_trained_on =
        std::any_of(training.begin(), training.end(), [&](const data::CorpusFile& other) {
          return other.hash == file.hash && other.bytes == file.bytes;
        });
    if (!is_trained_on) continue;
    log_warning("{} is validated on and trained on: its loss tells what was learned by heart",
                file.path.string());
  }
}

}  // namespace

TrainParts::TrainParts(const TrainOptions& options, const std::vector<data::NamedSource>& sources,
                       const train::RunTokenizer& tokenizer, const std::atomic<bool>* cancelled)
    : training_(std::make_unique<data::BuiltCorpus>(build(options, sources, tokenizer, cancelled))),
      corpus_(&training_->corpus),
      key_(training_->corpus.corpus_key()),
      former_key_(training_->former_key),
      valid_fraction_(fraction_of(options)),
      shares_(shares_of(sources)) {
  add_parts(sources, {.fraction = valid_fraction_, .seed = options.run.seed});
  if (options.valid_data.empty()) return;
  const auto held_out = data::find_unweighted(options.valid_data, "--valid-data");
  validation_ = std::make_unique<data::BuiltCorpus>(build(options, held_out, tokenizer, cancelled));
  tell_of_shared(training_->files, validation_->files);
  splits_.push_back(std::make_unique<data::DocumentSplit>(
      validation_->corpus, data::SplitOptions{.fraction = 0, .seed = options.run.seed}));
  validation_parts_ = {{.split = splits_.back().get()}};
}

TrainParts::TrainParts(const TrainOptions& options, std::unique_ptr<data::MemoryCorpus> tokens)
    : tokens_(std::move(tokens)),
      corpus_(tokens_.get()),
      key_(key_of(*tokens_)),
      valid_fraction_(fraction_of(options)) {
  if (!options.valid_data.empty()) {
    fail(ErrorKind::usage, "--valid-data goes with --data; of token ids a part is held out");
  }
  add_parts({}, {.fraction = valid_fraction_, .seed = options.run.seed});
}

void TrainParts::add_parts(const std::vector<data::NamedSource>& sources,
                           const data::SplitOptions& split) {
  const auto add = [&](const data::TokenCorpus& corpus, double weight) {
    splits_.push_back(std::make_unique<data::DocumentSplit>(corpus, split));
    const data::DocumentSplit* made = splits_.back().get();
    training_parts_.push_back({.split = made, .weight = weight});
    if (split.fraction > 0) {
      validation_parts_.push_back(
          {.split = made, .part = data::SplitPart::validation, .weight = weight});
    }
  };
  if (shares_.empty()) return add(*corpus_, 1);
  ranges_ = data::ranges_of_sources(*corpus_);
  DSMOE_CHECK(ranges_.size() == sources.size(), "{} ranges for {} sources", ranges_.size(),
              sources.size());
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].num_documents() == 0) {
      fail(ErrorKind::input, "{}: no document in it, but a weight", corpus_->sources()[i]);
    }
    add(ranges_[i], shares_[i]);
  }
}

std::string TrainParts::identity_of(uint64_t key) const {
  std::string text = fmt::format("{:016x}, {} for validation", key, valid_fraction_);
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? ", shares " : " ", shares_[i]);
  }
  return text;
}

OrderedJson TrainParts::files_json() const {
  if (training_ == nullptr) return OrderedJson::array();
  OrderedJson files = app::files_json(training_->files);
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    for (OrderedJson& file : files) {
      if (file["source"] == corpus_->sources()[i]) file["share"] = shares_[i];
    }
  }
  if (validation_ == nullptr) return files;
  for (OrderedJson& file : app::files_json(validation_->files)) {
    file["part"] = "validation";
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace dsmoe::app
