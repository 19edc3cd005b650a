// The decoder family of tokenizer.json, with the orders that can be streamed.
#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer/json_fields.h"
#include "text/tokenizer/tokenizer_components.h"

namespace dsmoe::text {
namespace {

constexpr std::size_t kMaxSteps = 64;

// How far the tokens have been joined by the steps read so far.
struct DecoderReader {
  DecoderSteps& steps;
  bool is_joined = false;     // behind Fuse or ByteLevel: one text, no tokens
  bool has_fallback = false;  // behind ByteFallback: bytes, not text

  void read(const Json& json, const std::string& path);
  void read_strip(const JsonFields& fields, const std::string& path);
};

void DecoderReader::read_strip(const JsonFields& fields, const std::string& path) {
  fields.allow_only({"type", "content", "start", "stop"});
  StripDecoder strip{.content = fields.character("content"),
                     .start = fields.count("start"),
                     .stop = fields.count("stop")};
  if (!is_joined) {
    steps.per_token.emplace_back(std::move(strip));
    return;
  }
  if (steps.whole_text)
    fail(ErrorKind::input, "{}: a second Strip of the whole text is not supported", path);
  steps.whole_text = std::move(strip);
}

void DecoderReader::read(const Json& json, const std::string& path) {
  const JsonFields fields(json, path);
  const std::string type = fields.string("type");
  if (steps.per_token.size() >= kMaxSteps) {
    fail(ErrorKind::input, "{}: more than {} steps in sequence", path, kMaxSteps);
  }
  if (type == "Sequence") {
    fields.allow_only({"type", "decoders"});
    fields.for_each("decoders",
                    [&](const Json& item, const std::string& item_path) { read(item, item_path); });
    return;
  }
  const bool in_order = type == "Fuse" || (type == "Strip" && (is_joined || !has_fallback)) ||
                        (!is_joined && !has_fallback);
  const bool is_known = type == "Fuse" || type == "Strip" || type == "ByteLevel" ||
                        type == "ByteFallback" || type == "Metaspace" || type == "Replace";
  if (!is_known) {
    fail(ErrorKind::input,
         "{}: the decoder {} is not supported; supported are Sequence, ByteLevel, ByteFallback, "
         "Fuse, Metaspace, Replace and Strip",
         path, in_quotes(type));
  }
  if (!in_order) {
    fail(ErrorKind::input, "{}: the decoder {} behind {} is not supported", path, in_quotes(type),
         is_joined ? "Fuse or ByteLevel" : "ByteFallback");
  }
  if (type == "Fuse") {
    fields.allow_only({"type"});
    is_joined = true;
  } else if (type == "Strip") {
    read_strip(fields, path);
  } else if (type == "ByteLevel") {
    fields.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps.per_token.emplace_back(ByteLevelDecoder{});
    is_joined = true;
  } else if (type == "ByteFallback") {
    fields.allow_only({"type"});
    steps.per_token.emplace_back(ByteFallbackDecoder{});
    has_fallback = true;
  } else if (type == "Metaspace") {
    steps.per_token.emplace_back(
        MetaspaceDecoder{.replacement = fields.character("replacement"),
                         .strips_first = read_prepend_scheme(fields) != PrependScheme::never});
  } else {
    steps.per_token.emplace_back(read_replace(fields));
  }
}

}  // namespace

void read_decoder(const Json& json, const std::string& path, DecoderSteps& steps) {
  DecoderReader{.steps = steps}.read(json, path);
}

}  // namespace dsmoe::text
