// Fuzz target: any bytes as text, JSONL and zstd give documents or an Error, nothing else.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "data/documents.h"

namespace {

using namespace dsmoe::data;

// A few bytes of zstd can stand for gigabytes; this much is enough to find what there is to find.
class FirstBytes : public ByteStream {
 public:
  explicit FirstBytes(std::unique_ptr<ByteStream> inner) : inner_(std::move(inner)) {}
  size_t read(std::span<char> out) override {
    const size_t count = left_ == 0 ? 0 : inner_->read(out.first(std::min(left_, out.size())));
    left_ -= count;
    return count;
  }
  uint64_t file_bytes_read() const override { return inner_->file_bytes_read(); }

 private:
  std::unique_ptr<ByteStream> inner_;
  size_t left_ = size_t{1} << 18;
};

void drain(std::unique_ptr<DocumentReader> reader) {
  try {
    for (Document document; reader->next(document);) {
      for (const DocumentPart& part : document.parts) {
        if (!dsmoe::is_valid_utf8(part.text)) __builtin_trap();
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
                                  [](const Chat& chat) {
                                    std::vector<DocumentPart> parts;
                                    for (const auto& message : chat.messages)
                                      parts.push_back({.text = text_of(message)});
                                    return parts;
                                  },
                              .max_document_bytes = 4096,
                              .max_line_bytes = 4096};
  drain(read_jsonl(std::make_unique<MemoryStream>(bytes), "f", options));
  drain(read_text(std::make_unique<MemoryStream>(bytes), "f", options));
  auto decompressed = zstd_stream(std::make_unique<MemoryStream>(bytes), "f");
  drain(read_jsonl(std::make_unique<FirstBytes>(std::move(decompressed)), "f", options));
  return 0;
}
