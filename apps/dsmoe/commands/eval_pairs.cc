// One JSON object per line; texts become tokens in the harness's way.
#include "commands/eval_pairs.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "commands/token_list.h"
#include "text/unicode.h"

namespace dsmoe::app {
namespace {

std::vector<int32_t> token_array(const Json& line, const char* key, const std::string& what) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_array()) {
    fail(ErrorKind::input, "{}: expected \"{}\", an array of token ids", what, key);
  }
  std::vector<int32_t> ids;
  for (const Json& id : *found) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      fail(ErrorKind::input, "{}: \"{}\" holds {}, expected token ids", what, key,
           in_quotes(id.dump()));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string text_field(const Json& line, const char* key, const std::string& what) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_string()) {
    fail(ErrorKind::input, "{}: expected \"{}\", a string", what, key);
  }
  return found->get<std::string>();
}

// str.isspace() of Python: the white space of Unicode and four separators of ASCII.
bool is_python_space(std::uint32_t code_point) {
  return text::is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

infer::TokenPair parse_pair(std::string_view bytes, const std::string& what,
                            const PairEncoder& encoder) {
  const Json line = parse_json(bytes, what);
  if (!line.is_object()) fail(ErrorKind::input, "{}: expected a JSON object", what);
  if (line.contains("context_ids") || line.contains("continuation_ids")) {
    return {.context = token_array(line, "context_ids", what),
            .continuation = token_array(line, "continuation_ids", what)};
  }
  return encoder.encode(text_field(line, "context", what), text_field(line, "continuation", what));
}

}  // namespace

PairBos parse_pair_bos(const std::string& word) {
  return word == "yes" ? PairBos::yes : word == "no" ? PairBos::no : PairBos::as_tokenizer;
}

PairEncoder::PairEncoder(const TextSide& text, const model::ModelConfig& config, PairBos bos)
    : text_(text), prefix_(text.prefix_token(config)), bos_(bos) {
  if (prefix_) prefix_text_ = text_.token_text(*prefix_);
}

infer::TokenPair PairEncoder::encode(std::string context, std::string continuation) const {
  if (context.empty()) return without_context(continuation);
  std::size_t end = context.size();
  while (end > 0) {
    const std::size_t start = previous_char(context, end);
    std::size_t at = start;
    if (!is_python_space(next_code_point(context, at))) break;
    end = start;
  }
  continuation = context.substr(end) + continuation;
  context.resize(end);
  infer::TokenPair pair{.context = tokens(context)};
  const std::vector<int32_t> whole = tokens(context + continuation);
  const std::size_t split = std::min(pair.context.size(), whole.size());
  pair.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(split), whole.end());
  return pair;
}

// A continuation that begins with the token that stands for an empty context has brought it.
infer::TokenPair PairEncoder::without_context(const std::string& continuation) const {
  infer::TokenPair pair{.context = {},
                        .continuation = text_.encode(continuation, AroundText::nothing)};
  if (prefix_ && !pair.continuation.empty() && pair.continuation.front() == *prefix_) {
    pair.context.push_back(*prefix_);
    pair.continuation.erase(pair.continuation.begin());
  }
  return pair;
}

std::vector<int32_t> PairEncoder::tokens(const std::string& text) const {
  const bool has_prefix = prefix_ && text.starts_with(prefix_text_);
  if (bos_ == PairBos::no || has_prefix) return text_.encode(text, AroundText::nothing);
  std::vector<int32_t> ids = text_.encode(text, AroundText::special);
  const std::optional<int32_t> bos = text_.bos_token();
  if (bos_ == PairBos::yes && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  return ids;
}

EvalPairs read_pairs(const std::string& file, const TextSide& side,
                     const model::ModelConfig& config, PairBos bos) {
  if (bos == PairBos::yes && !side.bos_token()) {
    fail(ErrorKind::input,
         "--bos yes: the tokenizer has no BOS; tokenizer_config.json would name it as bos_token");
  }
  const std::string text = read_text_file(file);
  const PairEncoder encoder(side, config, bos);
  EvalPairs pairs{.lines = {}, .prefix = encoder.prefix()};
  int64_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string what = fmt::format("{}:{}", file, line_number);
    pairs.lines.push_back({.pair = parse_pair(line, what, encoder), .what = what});
  }
  if (pairs.lines.empty()) {
    fail(ErrorKind::input, "{}: no pairs; expected one JSON object per line", file);
  }
  return pairs;
}

}  // namespace dsmoe::app
