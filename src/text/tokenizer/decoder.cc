// The per-token steps, and the strip at both ends of the whole text.
#include "text/tokenizer/decoder.h"

#include <algorithm>

#include "text/tokenizer/byte_alphabet.h"

namespace dsmoe::text {
namespace {

std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    int digit;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      digit = (c | 0x20) - 'a' + 10;
    } else {
      return std::nullopt;
    }
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

std::string strip_token(const StripDecoder& strip, std::string_view token) {
  for (std::size_t i = 0; i < strip.start && token.substr(0, strip.content.size()) == strip.content;
       ++i) {
    token.remove_prefix(strip.content.size());
  }
  for (std::size_t i = 0; i < strip.stop && token.size() >= strip.content.size() &&
                          token.substr(token.size() - strip.content.size()) == strip.content;
       ++i) {
    token.remove_suffix(strip.content.size());
  }
  return std::string(token);
}

std::string unspace(const MetaspaceDecoder& meta, std::string_view token, TokenPlace place) {
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    if (token.substr(at, meta.replacement.size()) == meta.replacement) {
      if (place == TokenPlace::later || !meta.strips_first) out += ' ';
      at += meta.replacement.size();
    } else {
      out += token[at++];
    }
  }
  return out;
}

enum class ByteSymbols { decode, keep };

std::string decode(const DecoderSteps& steps, std::string_view token, TokenPlace place,
                   ByteSymbols symbols, RegexScratch& scratch) {
  std::string text(token);
  for (const TokenDecoder& step : steps.per_token) {
    if (std::holds_alternative<ByteLevelDecoder>(step)) {
      if (symbols == ByteSymbols::keep) continue;
      // A token with other characters (a special one) stands for itself.
      if (std::optional<std::string> bytes = from_byte_symbols(text)) text = std::move(*bytes);
    } else if (std::holds_alternative<ByteFallbackDecoder>(step)) {
      if (const std::optional<char> byte = fallback_byte(text)) text.assign(1, *byte);
    } else if (const auto* meta = std::get_if<MetaspaceDecoder>(&step)) {
      text = unspace(*meta, text, place);
    } else if (const auto* strip = std::get_if<StripDecoder>(&step)) {
      text = strip_token(*strip, text);
    } else {
      std::string replaced;
      PieceStart unused;
      append_replaced(std::get<ReplaceStep>(step), text, scratch, replaced, unused);
      text = std::move(replaced);
    }
  }
  return text;
}

}  // namespace

std::string decode_token(const DecoderSteps& steps, std::string_view token, TokenPlace place,
                         RegexScratch& scratch) {
  return decode(steps, token, place, ByteSymbols::decode, scratch);
}

std::string decode_literal_token(const DecoderSteps& steps, std::string_view token,
                                 TokenPlace place, RegexScratch& scratch) {
  return decode(steps, token, place, ByteSymbols::keep, scratch);
}

bool depends_on_place(const DecoderSteps& steps) {
  return std::any_of(steps.per_token.begin(), steps.per_token.end(), [](const TokenDecoder& step) {
    const auto* meta = std::get_if<MetaspaceDecoder>(&step);
    return meta != nullptr && meta->strips_first;
  });
}

StreamStrip::StreamStrip(const std::optional<StripDecoder>& strip)
    : strip_(strip.value_or(StripDecoder{})), left_to_strip_(strip_.start) {}

void StreamStrip::push(std::string_view bytes, std::string& out) {
  if (strip_.content.empty()) {
    out.append(bytes);
    return;
  }
  pending_.append(bytes);
  std::size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    if (rest.size() < strip_.content.size() && strip_.content.substr(0, rest.size()) == rest) break;
    if (rest.substr(0, strip_.content.size()) == strip_.content) {
      at += strip_.content.size();
      if (at_start_ && left_to_strip_ > 0) {
        --left_to_strip_;
      } else {
        at_start_ = false;
        ++num_held_;
        if (num_held_ > strip_.stop) {
          out.append(strip_.content);
          --num_held_;
        }
      }
      continue;
    }
    at_start_ = false;
    for (; num_held_ > 0; --num_held_) out.append(strip_.content);
    out.push_back(pending_[at++]);
  }
  pending_.erase(0, at);
}

void StreamStrip::finish(std::string& out) {
  if (!pending_.empty()) {
    for (; num_held_ > 0; --num_held_) out.append(strip_.content);
  }
  out.append(pending_);
  pending_.clear();
  num_held_ = 0;
  at_start_ = true;
  left_to_strip_ = strip_.start;
}

}  // namespace dsmoe::text
