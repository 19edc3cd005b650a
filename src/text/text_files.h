// The files of a model that are about text: in its folder, or as the metadata of a GGUF file says
// them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace dsmoe::text {

struct TextFile {
  std::string bytes;
  std::string what;  // in messages
};

// `model`: a folder, or a GGUF file, which stands for tokenizer.json, tokenizer_config.json and
// chat_template.jinja. nullopt when there is no such file; throws Error(input) for one that is
// longer, or for metadata that is wrong or not supported.
std::optional<TextFile> read_text_file(const std::filesystem::path& model, std::string_view name,
                                       std::size_t max_bytes);

bool has_tokenizer(const std::filesystem::path& model);

}  // namespace dsmoe::text
