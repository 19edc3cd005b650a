// Counts words, merges pairs, writes the files.
#include "train_tokenizer.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/documents.h"
#include "text/bpe_train.h"

namespace dsmoe::app {
namespace {

text::SpecialTokens special_tokens(const model::ModelConfig& config) {
  text::SpecialTokens special;
  special.eos = text::SpecialToken{.content = "<|end_of_sentence|>", .id = eos_of(config)};
  if (config.bos_token_id) {
    const auto id = static_cast<int32_t>(*config.bos_token_id);
    special.bos = id == special.eos->id
                      ? *special.eos
                      : text::SpecialToken{.content = "<|begin_of_sentence|>", .id = id};
  }
  const auto pad = static_cast<int32_t>(config.pad_token_id.value_or(special.eos->id));
  if (pad == special.eos->id) {
    special.pad = special.eos;
  } else if (special.bos && pad == special.bos->id) {
    special.pad = special.bos;
  } else {
    special.pad = text::SpecialToken{.content = "<|pad|>", .id = pad};
  }
  return special;
}

// All text of all files, chats as their contents, so that a tokenizer sees what will be encoded.
void count_words(const NewTokenizer& request, text::WordCounts& counts, ThreadPool& pool) {
  data::ReaderOptions reader{.separator = request.separator};
  reader.render_chat = [](std::span<const data::ChatMessage> messages) {
    std::vector<data::DocumentPart> parts;
    for (const data::ChatMessage& message : messages) parts.push_back({.text = message.content});
    return parts;
  };
  Progress progress(
      {.label = "read", .total = static_cast<int64_t>(request.data.size()), .unit = "files"});
  constexpr std::size_t kPiece = std::size_t{16} << 20;  // counted at once, by all threads
  for (std::size_t i = 0; i < request.data.size(); ++i) {
    const auto documents =
        data::open_documents(request.data[i], data::InputFormat::automatic, reader);
    std::string text;
    for (data::Document document; documents->next(document);) {
      for (const data::DocumentPart& part : document.parts) {
        // Words never reach over the border of two documents: the delimiter stands between.
        text += part.text;
        text += data::kEndOfText;
      }
      if (text.size() < kPiece) continue;
      counts.add_text(text, pool);
      text.clear();
    }
    counts.add_text(text, pool);
    progress.update(static_cast<int64_t>(i) + 1);
  }
}

}  // namespace

int32_t eos_of(const model::ModelConfig& config) {
  if (config.eos_token_ids.empty()) {
    fail(ErrorKind::input, "config.json: no eos_token_id; training needs one to end documents");
  }
  return static_cast<int32_t>(config.eos_token_ids.front());
}

void train_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                     ThreadPool& pool) {
  log_info("no --tokenizer: training one of {} tokens on the data", config.vocab_size);
  train_tokenizer(request.run, config,
                  [&](text::WordCounts& counts) { count_words(request, counts, pool); });
}

void train_tokenizer(const std::filesystem::path& run, const model::ModelConfig& config,
                     FunctionRef<void(text::WordCounts&)> count) {
  text::BpeTrainOptions options{.vocab_size = static_cast<int32_t>(config.vocab_size),
                                .special = special_tokens(config)};
  text::check_train_options(options);
  std::vector<std::string> delimiters = options.special.contents();
  delimiters.emplace_back(data::kEndOfText);
  text::WordCounts counts(delimiters);
  count(counts);
  Progress progress({.label = "merge", .total = config.vocab_size, .unit = "tokens"});
  options.on_progress = [&](int64_t done, int64_t) { progress.update(done); };
  const text::TrainedBpe trained = text::train_bpe(counts, options);
  progress.update(config.vocab_size);
  progress.finish();
  atomic_write_file(run / "tokenizer_config.json",
                    text::to_tokenizer_config_json(
                        trained, static_cast<int32_t>(config.max_position_embeddings)));
  // Last: whoever finds it finds both.
  atomic_write_file(run / "tokenizer.json", text::to_tokenizer_json(trained));
}

}  // namespace dsmoe::app
