// Files -> token shards, built once per content of the inputs and tokenizer, reused afterwards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/documents.h"
#include "data/shard_corpus.h"
#include "data/token_corpus.h"

namespace dsmoe::data {

// What the corpus needs of a tokenizer.
struct Encoder {
  // Ids of a text, without bos and eos added. "</s>" in it is four characters, not a token.
  std::function<std::vector<int32_t>(std::string_view)> encode;
  // The same for what a chat template wrote, where "</s>" is a token. Empty: as encode.
  std::function<std::vector<int32_t>(std::string_view)> encode_rendered;
  int64_t vocab_size = 0;
  std::optional<int32_t> bos;  // absent: documents do not begin with one
  int32_t eos = 0;
  uint64_t hash = 0;  // of everything that decides the ids; content_hash() of tokenizer.json
};

// [bos] parts eos. bos and eos are not doubled where a template already wrote them. An assistant
// turn ends with a counted eos; the eos at the end counts if the last part counts. The mark of the
// first token means nothing: no token predicts it.
TokenDocument encode_document(const Document& document, const Encoder& encoder, int32_t source);

struct CorpusInput {
  std::filesystem::path path;
  std::string domain;  // for reports; empty: the name of the file, which is no part of the key
  std::string label;   // the same without being part of the key; files of one label are one source
  InputFormat format = InputFormat::automatic;
};

struct BuildProgress {
  uint64_t bytes_done = 0, bytes_total = 0;  // of the files as they lie on disk
  uint64_t num_documents = 0, num_tokens = 0;
};

struct CorpusOptions {
  std::vector<CorpusInput> inputs;
  std::filesystem::path cache_folder;  // created when missing
  ReaderOptions reader;
  uint64_t chat_template_hash = 0;  // of what reader.render_chat does
  uint64_t max_shard_tokens = uint64_t{1} << 28;
  uint64_t max_shard_documents = uint64_t{1} << 22;
  std::function<void(const BuildProgress&)> progress;  // after every document; may throw to give up
  // Now and then before that: while files are hashed, and another process is waited for. May throw.
  std::function<void()> poll;
};

// An input as it was read.
struct CorpusFile {
  std::filesystem::path path;
  std::string source;  // its name among the corpus's sources
  uint64_t bytes = 0;
  uint64_t hash = 0;  // XXH64 of the bytes on disk
};

struct BuiltCorpus {
  ShardCorpus corpus;
  std::filesystem::path folder;  // cache_folder/tokens-<key>
  uint64_t former_key = 0;       // what earlier programs called it, with the names of its files
  bool reused = false;
  std::vector<CorpusFile> files;
};

// Builds into a hidden folder, fsyncs, renames: the folder tokens-<key> is whole or absent. A
// second process that wants the same corpus waits for the first. A cached corpus is checked in
// full; a damaged one is built again with a warning. What killed builders left is removed. Files
// that were renamed since find their corpus, with the sources' names it was built with.
BuiltCorpus build_corpus(const CorpusOptions& options, const Encoder& encoder);

}  // namespace dsmoe::data
