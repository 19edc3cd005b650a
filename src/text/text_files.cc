// Looks into the folder, or asks for what metadata stands for.
#include "text/text_files.h"

#include "base/mapped_file.h"
#include "store/gguf/gguf_file.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace dsmoe::text {

std::optional<TextFile> read_text_file(const std::filesystem::path& model, std::string_view name,
                                       std::size_t max_bytes) {
  if (store::gguf::is_gguf(model)) {
    const auto file = store::gguf::File::open(model);
    auto bytes = gguf_text_file(file, name);
    if (!bytes) return std::nullopt;
    return TextFile{.bytes = std::move(*bytes), .what = file.what() + ": " + std::string(name)};
  }
  const std::filesystem::path path = model / name;
  if (!is_listed(path)) return std::nullopt;
  return TextFile{.bytes = read_small_file(path, max_bytes), .what = path.string()};
}

bool has_tokenizer(const std::filesystem::path& model) {
  if (!store::gguf::is_gguf(model)) return is_listed(model / "tokenizer.json");
  return has_gguf_tokenizer(store::gguf::File::open(model));
}

}  // namespace dsmoe::text
