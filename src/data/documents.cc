// Text cut at separators, and lines of JSON.
#include "data/documents.h"

#include <utility>

#include "base/error.h"
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
    const JsonDocument read = read_json_document(line, options_.keys, where);
    document.parts.clear();
    switch (read.shape) {
      case JsonDocument::Shape::text:
        document.parts.push_back({.text = read.text});
        break;
      case JsonDocument::Shape::pair:
        document.parts.push_back({.text = read.text, .counted = false});
        document.parts.push_back({.text = read.completion});
        break;
      case JsonDocument::Shape::chat:
        render(read.chat, where, document);
        break;
    }
  }

  void render(const Chat& chat, const std::string& where, Document& document) const {
    if (!options_.render_chat) {
      fail(ErrorKind::input, "{}: \"messages\" needs a chat template; give --chat-template FILE",
           where);
    }
    try {
      document.parts = options_.render_chat(chat);
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
