// Documents of a text or JSONL file, one at a time, each part marked as counted in the loss or not.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_stream.h"
#include "data/json_document.h"
#include "data/record_reader.h"

namespace dsmoe::data {

inline constexpr std::string_view kEndOfText = "<|endoftext|>";

// A part is encoded on its own: tokens never straddle the border between prompt and completion, as
// they cannot when the prompt alone is given to the model.
struct DocumentPart {
  std::string text;
  bool counted = true;     // its tokens are targets of the loss
  bool ends_turn = false;  // an assistant turn: eos follows if the text does not hold it already
  bool rendered = false;   // a chat template wrote it: special tokens in it are tokens, not text

  friend bool operator==(const DocumentPart&, const DocumentPart&) = default;
};

struct Document {
  std::vector<DocumentPart> parts;
};

// Turns one conversation into its parts, by the chat template of the model. The reader marks them
// as rendered.
using RenderChat = std::function<std::vector<DocumentPart>(const Chat&)>;

struct ReaderOptions {
  std::string separator;   // ends a document of a text file, besides <|endoftext|>; empty: none
  RenderChat render_chat;  // empty: {"messages"} is refused
  JsonKeys keys;           // of JSONL
  size_t max_document_bytes = size_t{256} << 20;
  size_t max_line_bytes = size_t{64} << 20;
};

class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // False at the end. Documents without any text are passed over. Throws Error(input) with file and
  // line on broken UTF-8, broken JSON, lines of no known shape and lengths beyond the limits.
  virtual bool next(Document& document) = 0;
  virtual uint64_t file_bytes_read() const = 0;
};

std::unique_ptr<DocumentReader> read_text(std::unique_ptr<ByteStream> stream, std::string name,
                                          const ReaderOptions& options);

// One JSON object per line: {"text"}, {"prompt", "completion"} or {"messages"}, or as the keys of
// the options say; other keys are left alone, empty lines passed over.
std::unique_ptr<DocumentReader> read_jsonl(std::unique_ptr<ByteStream> stream, std::string name,
                                           const ReaderOptions& options);

enum class InputFormat { automatic, text, jsonl };

// automatic: .jsonl, .ndjson and .json (also before .zst) are JSONL, everything else is text.
InputFormat resolve_format(const std::filesystem::path& path, InputFormat format);

std::unique_ptr<DocumentReader> open_documents(const std::filesystem::path& path,
                                               InputFormat format, const ReaderOptions& options);

}  // namespace dsmoe::data
