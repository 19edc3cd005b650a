// Counts words, merges pairs, writes the files.
#include "train/run_tokenizer.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "data/byte_stream.h"
#include "data/content_hash.h"
#include "data/documents.h"
#include "store/checkpoint.h"
#include "text/tokenizer/tokenizer_config.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 30;
constexpr const char* kKeyFile = ".tokenizer-key";

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

void stop_if(const std::atomic<bool>* cancelled) {
  if (cancelled != nullptr && *cancelled) throw DataInterrupted();
}

// So that a tokenizer sees what will be encoded.
void count_words(const NewTokenizer& request, text::WordCounts& counts, ThreadPool& pool) {
  uint64_t total = 0, done = 0;
  for (const std::string& path : request.data) total += data::FileStream(path).file_bytes();
  Progress progress({.label = "read", .total = static_cast<int64_t>(total), .unit = "bytes"});
  for (const std::string& path : request.data) {
    uint64_t read = 0;
    count_documents(path, {.separator = request.separator, .keys = request.keys}, counts, pool,
                    [&](uint64_t bytes) {
                      stop_if(request.cancelled);
                      read = bytes;
                      progress.update(static_cast<int64_t>(done + read));
                    });
    done += read;
  }
}

// Of the bytes a tokenizer is trained on.
uint64_t key_of_files(const NewTokenizer& request) {
  data::ContentHash key;
  key.update_u64(request.separator.size());
  key.update(request.separator);
  if (request.keys.are_named()) {
    for (const std::string* name : {&request.keys.text, &request.keys.prompt,
                                    &request.keys.completion, &request.keys.messages}) {
      key.update_u64(name->size());
      key.update(*name);
    }
  }
  std::vector<char> buffer(std::size_t{1} << 20);
  for (const std::string& path : request.data) {
    data::FileStream file(path);
    while (const std::size_t count = file.read(buffer)) {
      stop_if(request.cancelled);
      key.update(std::string_view(buffer.data(), count));
    }
    key.update_u64(file.file_bytes_read());
    key.update_u64(static_cast<uint64_t>(data::resolve_format(path, data::InputFormat::automatic)));
  }
  return key.value();
}

// Of everything that decides the files.
std::string key_of(uint64_t text_key, const text::BpeTrainOptions& options,
                   const model::ModelConfig& config) {
  data::ContentHash key;
  key.update_u64(text_key);
  key.update_u64(static_cast<uint64_t>(options.vocab_size));
  key.update_u64(static_cast<uint64_t>(config.max_position_embeddings));
  for (const auto& token : {options.special.bos, options.special.eos, options.special.pad}) {
    key.update_u64(token ? static_cast<uint64_t>(token->id) : UINT64_MAX);
  }
  return fmt::format("{:016x}\n", key.value());
}

bool is_usable(const fs::path& run, FoundTokenizer found, const std::string& key) {
  if (!fs::exists(run / "tokenizer.json")) return false;
  if (found == FoundTokenizer::is_the_runs || !fs::exists(run / kKeyFile)) return true;
  if (read_small_file(run / kKeyFile, 1024) == key) return true;
  log_info("{}: its tokenizer was trained on other text or for another config; training it anew",
           run.string());
  return false;
}

}  // namespace

int32_t eos_of(const model::ModelConfig& config) {
  if (config.eos_token_ids.empty()) {
    fail(ErrorKind::input, "config.json: no eos_token_id; training needs one to end documents");
  }
  return static_cast<int32_t>(config.eos_token_ids.front());
}

void count_documents(const fs::path& path, data::ReaderOptions reader, text::WordCounts& counts,
                     ThreadPool& pool, FunctionRef<void(uint64_t)> on_bytes) {
  reader.render_chat = [](const data::Chat& chat) {
    std::vector<data::DocumentPart> parts;
    for (const OrderedJson& message : chat.messages) {
      parts.push_back({.text = data::text_of(message)});
    }
    return parts;
  };
  constexpr std::size_t kPiece = std::size_t{16} << 20;  // counted at once, by all threads
  const auto documents = data::open_documents(path, data::InputFormat::automatic, reader);
  std::string text;
  std::size_t num_inserted = 0;
  const auto count = [&] {
    counts.add_text(text, pool, num_inserted);
    text.clear();
    num_inserted = 0;
    on_bytes(documents->file_bytes_read());
  };
  for (data::Document document; documents->next(document);) {
    for (const data::DocumentPart& part : document.parts) {
      // Words never reach over the border of two documents: the delimiter stands between.
      text += part.text;
      text += data::kEndOfText;
      num_inserted += data::kEndOfText.size();
    }
    if (text.size() >= kPiece) count();
  }
  count();
}

void write_tokenizer(const fs::path& folder, const text::TrainedBpe& trained, int32_t max_length) {
  std::error_code ignored;
  std::string json = text::to_tokenizer_config_json(trained, max_length);
  if (const fs::path chat = folder / "chat_template.jinja"; fs::is_regular_file(chat, ignored)) {
    json = text::with_chat_template(json, text::kTokenizerConfigFile,
                                    read_small_file(chat, kMaxTemplateBytes));
  }
  const fs::path config = folder / text::kTokenizerConfigFile;
  atomic_write_file(config, json);
  try {
    atomic_write_file(folder / "tokenizer.json", text::to_tokenizer_json(trained));
  } catch (...) {
    fs::remove(config, ignored);
    throw;
  }
}

FoundTokenizer found_tokenizer(const fs::path& run) {
  return store::has_checkpoints(run) ? FoundTokenizer::is_the_runs : FoundTokenizer::must_fit;
}

void ensure_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                      ThreadPool& pool) {
  const bool is_there = fs::exists(request.run / "tokenizer.json");
  if (is_there && request.found == FoundTokenizer::is_the_runs) return;
  const auto count = [&](text::WordCounts& counts) {
    log_info("no --tokenizer: training one of {} tokens on the data", config.vocab_size);
    count_words(request, counts, pool);
  };
  ensure_tokenizer(request, config, {.text_key = key_of_files(request), .count = count});
}

void ensure_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                      const CountedText& text) {
  const fs::path& run = request.run;
  text::BpeTrainOptions options{.vocab_size = static_cast<int32_t>(config.vocab_size),
                                .special = special_tokens(config)};
  const std::string key = key_of(text.text_key, options, config);
  if (is_usable(run, request.found, key)) return;
  text::check_train_options(options);
  std::vector<std::string> delimiters = options.special.contents();
  delimiters.emplace_back(data::kEndOfText);
  text::WordCounts counts(delimiters);
  text.count(counts);
  Progress progress({.label = "merge", .total = config.vocab_size, .unit = "tokens"});
  options.on_progress = [&](int64_t done, int64_t) {
    stop_if(request.cancelled);
    progress.update(done);
  };
  const text::TrainedBpe trained = text::train_bpe(counts, options);
  progress.update(config.vocab_size);
  progress.finish();
  std::error_code ignored;
  fs::remove(run / "tokenizer.json", ignored);  // never beside files that are not its own
  atomic_write_file(run / kKeyFile, key);
  write_tokenizer(run, trained, static_cast<int32_t>(config.max_position_embeddings));
}

}  // namespace dsmoe::train
