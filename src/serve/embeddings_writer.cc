// Cut to its first dimensions, brought to length 1, as numbers or as the bytes of floats.
#include "serve/embeddings_writer.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <span>

#include "serve/http_message.h"

namespace dsmoe::serve {
namespace {

std::vector<float> normalised(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  const double length = std::sqrt(squares);
  std::vector<float> unit;
  for (const float value : values) {
    unit.push_back(length > 0 ? static_cast<float>(value / length) : 0.0f);
  }
  return unit;
}

std::string base64(std::span<const float> values) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes(values.size_bytes(), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t at) {
      return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0u;
    };
    const unsigned group = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (int k = 0; k < 4; ++k) {
      const bool is_there = i + static_cast<std::size_t>(k) <= bytes.size();
      text += is_there ? kLetters[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

// The shortest digits that are read as the same float.
std::string list_of(std::span<const float> values) {
  std::string text = "[";
  for (const float value : values) {
    if (text.size() > 1) text += ',';
    text += fmt::format("{}", value);
  }
  return text + "]";
}

}  // namespace

std::string EmbeddingsWriter::choice(AnswerChoice& choice) {
  const CompletionRequest& request = frame_.request;
  std::span<const float> all(choice.all.embedding);
  if (request.dimensions > 0) all = all.first(static_cast<std::size_t>(request.dimensions));
  const std::vector<float> unit = normalised(all);
  choice.all = {};
  return fmt::format("{{\"object\":\"embedding\",\"embedding\":{},\"index\":{}}}",
                     request.base64 ? "\"" + base64(unit) + "\"" : list_of(unit), choice.index);
}

std::string EmbeddingsWriter::whole(const Pieces& choices, const Usage& usage) {
  std::string data;
  for (const std::string& each : choices) data += (data.empty() ? "" : ",") + each;
  const OrderedJson rest{
      {"model", frame_.model.id()},
      {"usage", {{"prompt_tokens", usage.prompt}, {"total_tokens", usage.prompt}}}};
  return "{\"object\":\"list\",\"data\":[" + data + "]," + to_text(rest).substr(1);
}

}  // namespace dsmoe::serve
