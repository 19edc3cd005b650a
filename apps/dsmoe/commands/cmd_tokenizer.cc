// dsmoe tokenizer: train, encode, decode.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "commands/command.h"
#include "commands/token_list.h"
#include "data/byte_stream.h"
#include "data/data_files.h"
#include "data/documents.h"
#include "terminal/output.h"
#include "text/tokenizer/bpe_train.h"
#include "text/tokenizer/tokenizer.h"
#include "train/run_tokenizer.h"

namespace dsmoe::app {
namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  std::vector<std::string> files;
  std::string out;
  std::int32_t vocab_size = 0;
  std::int32_t bos_id = 0;
  std::int32_t eos_id = 1;
  std::int32_t pad_id = -1;  // -1: eos
  std::string bos_token = "<|begin_of_sentence|>";
  std::string eos_token = "<|end_of_sentence|>";
  std::string pad_token = "<|pad|>";
  std::int64_t min_count = 2;
  std::int32_t max_length = 0;
  int threads = 0;
  bool json = false;
};

struct EncodeArguments {
  std::string model;
  std::string file;
  std::optional<std::string> text;
  bool no_special = false;
  bool literal_special = false;
  bool json = false;
};

struct DecodeArguments {
  std::string model;
  std::string file;
  std::string ids;
  bool skip_special = false;
  bool json = false;
};

// A file, or standard input for "" and "-".
std::string read_input(const std::string& file) {
  if (!file.empty() && file != "-") return read_text_file(file);
  return read_standard_input();
}

text::SpecialTokens special_tokens(const TrainArguments& arguments) {
  text::SpecialTokens special;
  special.bos = text::SpecialToken{.content = arguments.bos_token, .id = arguments.bos_id};
  special.eos = text::SpecialToken{.content = arguments.eos_token, .id = arguments.eos_id};
  if (arguments.bos_id == arguments.eos_id) special.bos = special.eos;
  if (arguments.pad_id < 0 || arguments.pad_id == arguments.eos_id) {
    special.pad = special.eos;
  } else if (arguments.pad_id == arguments.bos_id) {
    special.pad = special.bos;
  } else {
    special.pad = text::SpecialToken{.content = arguments.pad_token, .id = arguments.pad_id};
  }
  return special;
}

// Files as dsmoe train takes them; plain text of any length, and of any bytes.
void count_file(const std::string& file, text::WordCounts& counts, ThreadPool& pool) {
  if (data::resolve_format(file, data::InputFormat::automatic) == data::InputFormat::jsonl) {
    train::count_documents(file, {}, counts, pool, [](uint64_t) {});
    return;
  }
  const auto stream = data::open_text_bytes(file);
  counts.add_stream([&](std::span<char> out) { return stream->read(out); }, pool);
}

int run_train(const TrainArguments& arguments) {
  text::BpeTrainOptions options{.vocab_size = arguments.vocab_size,
                                .special = special_tokens(arguments),
                                .min_count = arguments.min_count};
  text::check_train_options(options);
  const fs::path folder = arguments.out;
  std::error_code error;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    if (!fs::exists(folder / name, error)) continue;
    fail(ErrorKind::input,
         "{} has a {}, which its model may need; choose another folder, or remove it",
         arguments.out, name);
  }
  // First of all: a long text is not read in vain, and no folder is left for a text that is not.
  std::vector<std::string> files;
  for (const fs::path& file : data::files_of(data::find_unweighted(arguments.files, "FILE"))) {
    files.push_back(file.string());
  }
  for (const std::string& file : files) {
    if (!is_listed(file)) fail(ErrorKind::io, "cannot open {}: No such file or directory", file);
  }
  const NewFolder created(folder);
  ThreadPool pool(arguments.threads);
  std::vector<std::string> delimiters = options.special.contents();
  delimiters.emplace_back(data::kEndOfText);  // as dsmoe train reads a corpus
  text::WordCounts counts(delimiters);
  {
    Progress progress(
        {.label = "read", .total = static_cast<std::int64_t>(files.size()), .unit = "files"});
    std::int64_t done = 0;
    for (const std::string& file : files) {
      count_file(file, counts, pool);
      progress.update(++done);
    }
  }
  text::TrainedBpe trained;
  {
    const std::int64_t total =
        arguments.vocab_size - 256 - static_cast<std::int64_t>(options.special.distinct().size());
    Progress progress({.label = "merge", .total = total, .unit = "tokens"});
    options.on_progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
    trained = text::train_bpe(counts, options);
    progress.update(static_cast<std::int64_t>(trained.vocab.size()) - 256);
  }
  const auto num_tokens =
      static_cast<std::int64_t>(trained.vocab.size() + trained.special.distinct().size());
  if (num_tokens < arguments.vocab_size) {
    log_warning(
        "{} of {} ids are used: no further pair occurs {} times; more text gives more tokens",
        num_tokens, arguments.vocab_size, arguments.min_count);
  }
  train::write_tokenizer(folder, trained, arguments.max_length);
  if (arguments.json) {
    print_json_line({{"folder", arguments.out},
                     {"bytes", counts.num_bytes()},
                     {"tokens", num_tokens},
                     {"merges", trained.merges.size()}});
  } else {
    print("{}: {} tokens, {} merges, from {} bytes of text\n", arguments.out, num_tokens,
          trained.merges.size(), counts.num_bytes());
  }
  return kDone;
}

int run_encode(const EncodeArguments& arguments) {
  if (arguments.text && !arguments.file.empty()) {
    fail(ErrorKind::usage, "give a text with -t or a FILE, not both");
  }
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(arguments.model);
  const std::string input = arguments.text ? *arguments.text : read_input(arguments.file);
  const std::vector<std::int32_t> ids = tokenizer.encode(
      input, {.add_special = arguments.no_special ? text::AddSpecial::no : text::AddSpecial::yes,
              .parse_special =
                  arguments.literal_special ? text::ParseSpecial::no : text::ParseSpecial::yes});
  if (arguments.json) {
    std::vector<std::string> tokens;
    for (const std::int32_t id : ids) {
      tokens.push_back(replace_ill_formed(tokenizer.id_to_bytes(id).value_or("")));
    }
    print_json_line({{"ids", ids}, {"tokens", tokens}});
  } else {
    write_output(fmt::format("{}\n", fmt::join(ids, " ")));
  }
  return kDone;
}

// What encode prints, and JSON lists. A text of no tokens has no ids.
std::vector<std::int32_t> parse_ids(std::string_view text, const std::string& what,
                                    std::int32_t vocab_size) {
  if (text.find_first_not_of(" \t\r\n[]") == std::string_view::npos) return {};
  std::vector<std::int32_t> ids = parse_token_list(text, what);
  for (const std::int32_t id : ids) {
    if (id >= vocab_size) {
      fail(ErrorKind::input, "{}: token {} is beyond the vocabulary of {}", what, id, vocab_size);
    }
  }
  return ids;
}

int run_decode(const DecodeArguments& arguments) {
  if (!arguments.ids.empty() && !arguments.file.empty()) {
    fail(ErrorKind::usage, "give ids with -i or a FILE, not both");
  }
  const text::Tokenizer tokenizer = text::Tokenizer::from_file(arguments.model);
  const std::string file = arguments.file.empty() ? "standard input" : arguments.file;
  const std::vector<std::int32_t> ids =
      arguments.ids.empty() ? parse_ids(read_input(arguments.file), file, tokenizer.vocab_size())
                            : parse_ids(arguments.ids, "--ids", tokenizer.vocab_size());
  const std::string out = tokenizer.decode(
      ids, {.skip_special = arguments.skip_special ? text::SkipSpecial::yes : text::SkipSpecial::no,
            .ill_formed = arguments.json ? text::IllFormed::replace : text::IllFormed::keep});
  if (arguments.json) {
    print_json_line({{"text", out}});
  } else {
    write_output(out);
    if (isatty(STDOUT_FILENO) != 0) write_output("\n");  // a file gets the exact bytes
  }
  return kDone;
}

void add_training(CommandLine& parent) {
  const auto arguments = std::make_shared<TrainArguments>();
  CommandLine train = parent.command("train", "Train a byte-level BPE tokenizer on text");
  train.footer(
      "Writes tokenizer.json and tokenizer_config.json. The same files give the same tokenizer, "
      "whatever the number of threads.\n\n"
      "Examples:\n  dsmoe tokenizer train corpus/*.txt --vocab-size 8192 -o my-model\n"
      "  dsmoe tokenizer train a.txt --vocab-size 102400 --bos-id 100000 \\\n"
      "    --eos-id 100001 -o my-model");
  train.option("files", arguments->files, "text, JSONL, either as .zst, or folders of these")
      .required()
      .type("FILE");
  train.option("-o,--out", arguments->out, "folder to write to").required().type("DIR");
  train.option("--vocab-size", arguments->vocab_size, "ids in all, special tokens included")
      .required();
  train.option("--bos-id", arguments->bos_id, "id of the token at the start of a text")
      .type("ID")
      .show_default();
  train.option("--eos-id", arguments->eos_id, "id of the token at the end of a text")
      .type("ID")
      .show_default();
  train.option("--pad-id", arguments->pad_id, "id of the padding token; default: --eos-id")
      .type("ID");
  train.option("--bos-token", arguments->bos_token, "text of the token of --bos-id").show_default();
  train.option("--eos-token", arguments->eos_token, "text of the token of --eos-id").show_default();
  train
      .option("--pad-token", arguments->pad_token,
              "text of the token of --pad-id, when it has an id of its own")
      .show_default();
  train.option("--min-count", arguments->min_count, "pairs seen less often are not merged")
      .show_default();
  train.option("--max-length", arguments->max_length, "model_max_length to write").at_least(1);
  train.option("--threads", arguments->threads, "threads; default: physical cores")
      .range(int64_t{1}, int64_t{1024});
  train.flag("--json", arguments->json, "print JSON");
  train.runs([arguments] { return run_train(*arguments); });
}

void add_encoding(CommandLine& parent) {
  const auto arguments = std::make_shared<EncodeArguments>();
  CommandLine encode = parent.command("encode", "Print the token ids of a text");
  encode.footer(
      "Examples:\n  dsmoe tokenizer encode my-model -t \"Hello world\"\n"
      "  dsmoe tokenizer encode tokenizer.json notes.txt --no-special\n"
      "  cat notes.txt | dsmoe tokenizer encode my-model --json");
  encode.option("model", arguments->model, "model folder or tokenizer.json")
      .required()
      .type("MODEL");
  encode.option("file", arguments->file, "text file; default: stdin").type("FILE");
  encode.option("-t,--text", arguments->text, "text to encode");
  encode.flag("--no-special", arguments->no_special, "do not add BOS and the like");
  encode.flag("--literal-special", arguments->literal_special,
              "special tokens written in the text are plain text");
  encode.flag("--json", arguments->json, "print {\"ids\": [...], \"tokens\": [...]}");
  encode.runs([arguments] { return run_encode(*arguments); });
}

void add_decoding(CommandLine& parent) {
  const auto arguments = std::make_shared<DecodeArguments>();
  CommandLine decode = parent.command("decode", "Print the text of token ids");
  decode.footer(
      "Ids are numbers with spaces, commas or lines between them.\n\n"
      "Examples:\n  dsmoe tokenizer decode my-model -i \"72 345 9\"\n"
      "  dsmoe tokenizer encode my-model a.txt |\n"
      "    dsmoe tokenizer decode my-model --skip-special > same.txt");
  decode.option("model", arguments->model, "model folder or tokenizer.json")
      .required()
      .type("MODEL");
  decode.option("file", arguments->file, "file of ids; default: stdin").type("FILE");
  decode.option("-i,--ids", arguments->ids, "ids to decode").type("IDS");
  decode.flag("--skip-special", arguments->skip_special, "leave special tokens out");
  decode.flag("--json", arguments->json, "print {\"text\": \"...\"}; broken UTF-8 becomes U+FFFD");
  decode.runs([arguments] { return run_decode(*arguments); });
}

}  // namespace

void add_tokenizer(CommandLine& app) {
  CommandLine tokenizer =
      app.command("tokenizer", "Train a tokenizer; encode and decode text with one");
  tokenizer.needs_command();
  tokenizer.footer("Example:\n  dsmoe tokenizer encode my-model -t \"Hello world\"");
  add_training(tokenizer);
  add_encoding(tokenizer);
  add_decoding(tokenizer);
}

}  // namespace dsmoe::app
