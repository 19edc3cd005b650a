// Hash the inputs, take the lock, reuse or build, rename into place.
#include "data/corpus_builder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/lock_file.h"
#include "base/log.h"
#include "data/content_hash.h"
#include "data/shard_writer.h"

namespace dsmoe::data {
namespace {

constexpr std::string_view kCorpusPrefix = "tokens-";

namespace fs = std::filesystem;

struct HashedInput {
  uint64_t hash, bytes;
};

HashedInput hash_file(const fs::path& path, const std::function<void()>& poll) {
  FileStream file(path);
  ContentHash hash;
  std::vector<char> buffer(size_t{1} << 20);
  while (const size_t count = file.read(buffer)) {
    if (poll) poll();
    hash.update(std::string_view(buffer.data(), count));
  }
  return {hash.value(), file.file_bytes_read()};
}

// Tells whether a file was written to meanwhile.
struct FileState {
  std::uintmax_t bytes = 0;
  fs::file_time_type modified;
  bool operator==(const FileState&) const = default;
};

FileState state_of(const fs::path& path) {
  std::error_code ignored;  // what is gone has another state; reading it says why
  return {fs::file_size(path, ignored), fs::last_write_time(path, ignored)};
}

// File names as domains; the whole path where two different files have the same name.
std::vector<std::string> domains_of(const std::vector<CorpusInput>& inputs) {
  std::vector<std::string> domains;
  for (const CorpusInput& input : inputs) {
    const auto same_name = [&](const CorpusInput& other) {
      return other.path != input.path && other.path.filename() == input.path.filename();
    };
    const bool clash = std::any_of(inputs.begin(), inputs.end(), same_name);
    domains.push_back(!input.domain.empty()  ? input.domain
                      : !input.label.empty() ? input.label
                      : clash                ? input.path.string()
                                             : input.path.filename().string());
  }
  return domains;
}

struct Inputs {
  std::vector<std::string> sources;  // distinct domains, in order of appearance
  std::vector<int32_t> source_of;    // per input
  std::vector<FileState> states;     // per input, before it was hashed
  std::vector<CorpusFile> files;     // per input
  uint64_t bytes = 0, key = 0, former_key = 0;
};

Inputs inspect(const CorpusOptions& options, const Encoder& encoder) {
  Inputs inputs;
  // The former key, of earlier programs, held the files' names.
  ContentHash key, former_key;
  const auto add = [&](uint64_t part) {
    key.update_u64(part);
    former_key.update_u64(part);
  };
  const auto add_text = [](ContentHash& hash, std::string_view text) {
    hash.update_u64(text.size());
    hash.update(text);
  };
  // The numbers that decide the shards' bytes besides the inputs; a change of how documents are
  // encoded must change the first.
  constexpr uint64_t kEncodingVersion = 1;
  for (const uint64_t part :
       {kEncodingVersion, encoder.hash, static_cast<uint64_t>(encoder.vocab_size),
        static_cast<uint64_t>(encoder.bos.value_or(-1)), static_cast<uint64_t>(encoder.eos),
        options.chat_template_hash, options.max_shard_tokens, options.max_shard_documents}) {
    add(part);
  }
  for (ContentHash* hash : {&key, &former_key}) add_text(*hash, options.reader.separator);
  if (const JsonKeys& keys = options.reader.keys; keys.are_named()) {
    for (const std::string* name : {&keys.text, &keys.prompt, &keys.completion, &keys.messages}) {
      add_text(key, *name);
    }
  }
  const std::vector<std::string> domains = domains_of(options.inputs);
  for (size_t i = 0; i < domains.size(); ++i) {
    const CorpusInput& input = options.inputs[i];
    inputs.states.push_back(state_of(input.path));
    const HashedInput hashed = hash_file(input.path, options.poll);
    inputs.bytes += hashed.bytes;
    inputs.files.push_back(
        {.path = input.path, .source = domains[i], .bytes = hashed.bytes, .hash = hashed.hash});
    add(hashed.hash);
    add(hashed.bytes);
    add(static_cast<uint64_t>(resolve_format(input.path, input.format)));
    auto at = std::find(inputs.sources.begin(), inputs.sources.end(), domains[i]);
    if (at == inputs.sources.end()) at = inputs.sources.insert(at, domains[i]);
    inputs.source_of.push_back(static_cast<int32_t>(at - inputs.sources.begin()));
    // Which inputs share a domain, and names that were given; not what files are called.
    key.update_u64(static_cast<uint64_t>(inputs.source_of.back()));
    add_text(key, input.domain);
    add_text(former_key, domains[i]);
  }
  inputs.key = key.value();
  inputs.former_key = former_key.value();
  return inputs;
}

// One builder per corpus at a time. The file stays; the lock goes with the process.
class BuildLock {
 public:
  BuildLock(const fs::path& path, const std::function<void()>& poll) {
    descriptor_ = open_lock_file(path);
    try {
      wait(path, poll);
    } catch (...) {
      ::close(descriptor_);
      throw;
    }
  }
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;
  ~BuildLock() { ::close(descriptor_); }

 private:
  // A blocking flock would hear no signal: handlers restart it.
  void wait(const fs::path& path, const std::function<void()>& poll) {
    constexpr auto kPause = std::chrono::milliseconds(50);
    for (bool told = false; ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0; told = true) {
      if (errno != EWOULDBLOCK && errno != EINTR) fail_errno("cannot lock " + path.string());
      if (!told) log_info("another process is building the same corpus; waiting for it");
      if (poll) poll();
      std::this_thread::sleep_for(kPause);
    }
  }

  int descriptor_;
};

void write_shards(const CorpusOptions& options, const Encoder& encoder, const Inputs& inputs,
                  const fs::path& folder) {
  ShardSetWriter writer({.folder = folder,
                         .vocab_size = encoder.vocab_size,
                         .tokenizer_hash = encoder.hash,
                         .corpus_key = inputs.key,
                         .sources = inputs.sources,
                         .max_shard_tokens = options.max_shard_tokens,
                         .max_shard_documents = options.max_shard_documents});
  uint64_t bytes_before = 0;
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    const CorpusInput& input = options.inputs[i];
    const auto reader = open_documents(input.path, input.format, options.reader);
    Document document;
    while (reader->next(document)) {
      writer.add(encode_document(document, encoder, inputs.source_of[i]));
      if (!options.progress) continue;
      options.progress({.bytes_done = bytes_before + reader->file_bytes_read(),
                        .bytes_total = inputs.bytes,
                        .num_documents = writer.num_documents(),
                        .num_tokens = writer.num_tokens()});
    }
    bytes_before += reader->file_bytes_read();
    // The key is of the bytes that were hashed: others must not be found under it later.
    if (state_of(input.path) != inputs.states[i]) {
      fail(ErrorKind::io, "{} was changed while it was read; start again when it is complete",
           input.path.string());
    }
  }
  if (writer.num_documents() == 0) {
    fail(ErrorKind::input, "no document in {}{}; expected text",
         options.inputs.front().path.string(),
         options.inputs.size() > 1 ? fmt::format(" and {} more", options.inputs.size() - 1) : "");
  }
  writer.finish();
}

std::optional<ShardCorpus> open_cached(const fs::path& folder, const Inputs& inputs) {
  std::error_code error;
  if (!fs::exists(folder, error)) return std::nullopt;
  try {
    ShardCorpus corpus(folder, ShardCheck::everything);
    if (corpus.corpus_key() == inputs.key && corpus.sources().size() == inputs.sources.size()) {
      corpus.name_sources(inputs.sources);
      return corpus;
    }
    log_warning("{} holds another corpus than its name says; building it again", folder.string());
  } catch (const Error& damage) {
    log_warning("{} (building it again)", damage.what());
  }
  fs::remove_all(folder, error);
  if (error) fail(ErrorKind::io, "cannot remove {}: {}", folder.string(), error.message());
  return std::nullopt;
}

}  // namespace

TokenDocument encode_document(const Document& document, const Encoder& encoder, int32_t source) {
  TokenDocument out{.source = source};
  const auto append = [&](int32_t id, bool counted) {
    out.tokens.push_back(id);
    out.counted.push_back(counted ? 1 : 0);
  };
  bool last_counted = true;
  for (const DocumentPart& part : document.parts) {
    const auto& encode =
        part.rendered && encoder.encode_rendered ? encoder.encode_rendered : encoder.encode;
    const std::vector<int32_t> ids = encode(part.text);
    for (const int32_t id : ids) append(id, part.counted);
    const bool has_eos = std::find(ids.begin(), ids.end(), encoder.eos) != ids.end();
    if (part.ends_turn && !has_eos) append(encoder.eos, part.counted);
    last_counted = part.counted;
  }
  if (encoder.bos && (out.tokens.empty() || out.tokens.front() != *encoder.bos)) {
    out.tokens.insert(out.tokens.begin(), *encoder.bos);
    out.counted.insert(out.counted.begin(), 0);
  }
  if (out.tokens.empty() || out.tokens.back() != encoder.eos) append(encoder.eos, last_counted);
  // Nothing predicts the first token, so whether it counts is a matter of form; "counts" lets a
  // corpus without prompts go without a mask.
  out.counted.front() = 1;
  if (std::find(out.counted.begin(), out.counted.end(), 0) == out.counted.end())
    out.counted.clear();
  return out;
}

BuiltCorpus build_corpus(const CorpusOptions& options, const Encoder& encoder) {
  if (options.inputs.empty()) fail(ErrorKind::usage, "no data files were given; name at least one");
  const NewFolder cache(options.cache_folder);
  remove_leftovers_in(options.cache_folder, kCorpusPrefix);
  const Inputs inputs = inspect(options, encoder);
  const std::string name = fmt::format("{}{:016x}", kCorpusPrefix, inputs.key);
  const fs::path folder = options.cache_folder / name;
  const BuildLock lock(options.cache_folder / fmt::format(".{}.lock", name), options.poll);
  if (auto cached = open_cached(folder, inputs)) {
    return {.corpus = std::move(*cached),
            .folder = folder,
            .former_key = inputs.former_key,
            .reused = true,
            .files = inputs.files};
  }
  HiddenName partial(folder, HiddenName::Kind::folder);
  write_shards(options, encoder, inputs, partial.path());
  fsync_folder(partial.path());
  partial.rename();
  return {.corpus = ShardCorpus(folder, ShardCheck::structure),
          .folder = folder,
          .former_key = inputs.former_key,
          .reused = false,
          .files = inputs.files};
}

}  // namespace dsmoe::data
