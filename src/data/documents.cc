// Text cut at separators, and the three JSONL shapes.
#include "data/documents.h"

#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

namespace dsmoe::data {
namespace {

class TextReader : public DocumentReader {
 public:
  TextReader(std::unique_ptr<ByteStream> stream, std::string name, const ReaderOptions& options)
      : stream_(std::move(stream)),
        name_(std::move(name)),
        records_(*stream_,
                 {.name = name_,
                  .delimiters = delimiters(options),
                  .max_record_bytes = options.max_document_bytes,
                  .record_noun = "document",
                  .too_long_advice = "end documents with <|endoftext|> or name what ends them with "
                                     "--separator",
                  .drop_line_break = true}) {}

  bool next(Document& document) override {
    document.parts.assign(1, {});
    std::string& text = document.parts[0].text;
    while (records_.next(text)) {
      check_utf8(text, records_.position(), name_);
      if (text.find_first_not_of(" \t\r\n") != std::string::npos) return true;
    }
    return false;
  }

  uint64_t file_bytes_read() const override { return stream_->file_bytes_read(); }

 private:
  static std::vector<std::string> delimiters(const ReaderOptions& options) {
    std::vector<std::string> all{std::string(kEndOfText)};
    if (!options.separator.empty()) all.push_back(options.separator);
    return all;
  }

  std::unique_ptr<ByteStream> stream_;
  std::string name_;
  RecordReader records_;
};

constexpr std::string_view kShapes =
    R"(expected {"text"}, {"prompt", "completion"} or {"messages"})";

const std::string& string_field(const Json& object, const char* key, std::string_view where) {
  const Json& value = object.at(key);
  if (!value.is_string()) {
    fail(ErrorKind::input, "{}: \"{}\" must be a string, it is {}", where, key, value.type_name());
  }
  return value.get_ref<const std::string&>();
}

// Every key must be one of `allowed`, and all of those must be there.
void check_keys(const Json& object, std::initializer_list<const char*> allowed,
                std::string_view where, std::string_view expectation) {
  for (const auto& [key, value] : object.items()) {
    bool known = false;
    for (const char* name : allowed) known = known || key == name;
    if (!known)
      fail(ErrorKind::input, "{}: key {} is not known; {}", where, in_quotes(key), expectation);
  }
  for (const char* name : allowed) {
    if (!object.contains(name)) {
      fail(ErrorKind::input, "{}: key \"{}\" is missing; {}", where, name, expectation);
    }
  }
}

std::vector<ChatMessage> read_messages(const Json& list, const std::string& where) {
  if (!list.is_array() || list.empty()) {
    fail(ErrorKind::input, "{}: \"messages\" must be a list of at least one message", where);
  }
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}: message {}", where, i);
    if (!list[i].is_object()) {
      fail(ErrorKind::input, "{} must be an object, it is {}", place, list[i].type_name());
    }
    check_keys(list[i], {"role", "content"}, place, R"(a message is {"role", "content"})");
    ChatMessage message{string_field(list[i], "role", place),
                        string_field(list[i], "content", place)};
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      fail(ErrorKind::input, "{}: role {} is not known; expected system, user or assistant", place,
           in_quotes(message.role));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

class JsonlReader : public DocumentReader {
 public:
  JsonlReader(std::unique_ptr<ByteStream> stream, std::string name, const ReaderOptions& options)
      : stream_(std::move(stream)),
        name_(std::move(name)),
        options_(options),
        lines_(*stream_, {.name = name_,
                          .delimiters = {"\n"},
                          .max_record_bytes = options.max_line_bytes,
                          .record_noun = "line",
                          .too_long_advice = "JSONL needs one object per line; cut long texts",
                          .drop_line_break = false}) {}

  bool next(Document& document) override {
    std::string line;
    while (lines_.next(line)) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      read_line(line, document);
      for (const DocumentPart& part : document.parts) {
        if (!part.text.empty()) return true;
      }
    }
    return false;
  }

  uint64_t file_bytes_read() const override { return stream_->file_bytes_read(); }

 private:
  void read_line(std::string_view line, Document& document) const {
    check_utf8(line, lines_.position(), name_);
    const std::string where = fmt::format("{}: line {}", name_, lines_.position().line);
    const Json object = parse_json(line, where);
    if (!object.is_object()) {
      fail(ErrorKind::input, "{}: a JSON {} instead of an object; {}, one object per line", where,
           object.type_name(), kShapes);
    }
    document.parts.clear();
    if (object.contains("messages")) {
      check_keys(object, {"messages"}, where, kShapes);
      render(read_messages(object["messages"], where), where, document);
    } else if (object.contains("prompt") || object.contains("completion")) {
      check_keys(object, {"prompt", "completion"}, where, kShapes);
      document.parts.push_back({.text = string_field(object, "prompt", where), .counted = false});
      document.parts.push_back({.text = string_field(object, "completion", where)});
    } else {
      check_keys(object, {"text"}, where, kShapes);
      document.parts.push_back({.text = string_field(object, "text", where)});
    }
  }

  void render(const std::vector<ChatMessage>& messages, const std::string& where,
              Document& document) const {
    if (!options_.render_chat) {
      fail(ErrorKind::input, "{}: \"messages\" needs a chat template; give --chat-template FILE",
           where);
    }
    try {
      document.parts = options_.render_chat(messages);
    } catch (const Error& error) {
      fail(error.kind(), "{}: {}", where, error.what());
    }
    for (DocumentPart& part : document.parts) part.rendered = true;
  }

  std::unique_ptr<ByteStream> stream_;
  std::string name_;
  ReaderOptions options_;
  RecordReader lines_;
};

}  // namespace

std::unique_ptr<DocumentReader> read_text(std::unique_ptr<ByteStream> stream, std::string name,
                                          const ReaderOptions& options) {
  return std::make_unique<TextReader>(std::move(stream), std::move(name), options);
}

std::unique_ptr<DocumentReader> read_jsonl(std::unique_ptr<ByteStream> stream, std::string name,
                                           const ReaderOptions& options) {
  return std::make_unique<JsonlReader>(std::move(stream), std::move(name), options);
}

InputFormat resolve_format(const std::filesystem::path& path, InputFormat format) {
  if (format != InputFormat::automatic) return format;
  const auto name = path.extension() == ".zst" ? path.stem() : path.filename();
  const std::string ending = name.extension().string();
  return ending == ".jsonl" || ending == ".ndjson" || ending == ".json" ? InputFormat::jsonl
                                                                        : InputFormat::text;
}

std::unique_ptr<DocumentReader> open_documents(const std::filesystem::path& path,
                                               InputFormat format, const ReaderOptions& options) {
  auto stream = open_text_bytes(path);
  return resolve_format(path, format) == InputFormat::jsonl
             ? read_jsonl(std::move(stream), path.string(), options)
             : read_text(std::move(stream), path.string(), options);
}

}  // namespace dsmoe::data
