// Fuzz target: any bytes as text, JSONL and zstd give documents or an Error, nothing else.
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "data/documents.h"

namespace {

using namespace dsmoe::data;

void drain(std::unique_ptr<DocumentReader> reader) {
  try {
    for (Document document; reader->next(document);) {
      for (const DocumentPart& part : document.parts) {
        if (valid_utf8_prefix(part.text) != part.text.size()) __builtin_trap();
      }
    }
  } catch (const dsmoe::Error& error) {
    if (error.kind() != dsmoe::ErrorKind::input) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const ReaderOptions options{.separator = "--",
                              .render_chat =
                                  [](std::span<const ChatMessage> messages) {
                                    std::vector<DocumentPart> parts;
                                    for (const ChatMessage& message : messages)
                                      parts.push_back({.text = message.content});
                                    return parts;
                                  },
                              .max_document_bytes = 4096,
                              .max_line_bytes = 4096};
  drain(read_jsonl(std::make_unique<MemoryStream>(bytes), "f", options));
  drain(read_text(std::make_unique<MemoryStream>(bytes), "f", options));
  drain(read_jsonl(zstd_stream(std::make_unique<MemoryStream>(bytes), "f"), "f", options));
  return 0;
}
