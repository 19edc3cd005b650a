// The well-formedness table of the Unicode standard (table 3-7) as a small scanner.
#include "base/utf8.h"

#include <fmt/core.h>

#include <cstring>

namespace dsmoe {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}

// What may follow a lead byte: total length and the range of the second byte. length 0: not a lead
// byte.
struct Lead {
  int length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

Lead classify(unsigned char lead) {
  if (lead < 0x80) return {.length = 1};
  if (lead < 0xC2) return {};
  if (lead < 0xE0) return {.length = 2};
  if (lead == 0xE0) return {.length = 3, .low = 0xA0};
  if (lead == 0xED) return {.length = 3, .high = 0x9F};  // no surrogates
  if (lead < 0xF0) return {.length = 3};
  if (lead == 0xF0) return {.length = 4, .low = 0x90};
  if (lead < 0xF4) return {.length = 4};
  if (lead == 0xF4) return {.length = 4, .high = 0x8F};
  return {};
}

struct Prefix {
  std::size_t length;  // bytes that are right so far, at least 1
  bool complete;       // a whole character
  bool truncated;      // stopped by the end of the text, not by a wrong byte
};

Prefix read_prefix(std::string_view text, std::size_t at) {
  const Lead lead = classify(byte_at(text, at));
  if (lead.length == 0) return {.length = 1, .complete = false, .truncated = false};
  for (int i = 1; i < lead.length; ++i) {
    const std::size_t pos = at + static_cast<std::size_t>(i);
    if (pos >= text.size()) {
      return {.length = static_cast<std::size_t>(i), .complete = false, .truncated = true};
    }
    const unsigned char c = byte_at(text, pos);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (c < low || c > high) {
      return {.length = static_cast<std::size_t>(i), .complete = false, .truncated = false};
    }
  }
  return {.length = static_cast<std::size_t>(lead.length), .complete = true, .truncated = false};
}

}  // namespace

int utf8_sequence_length(std::string_view text) {
  if (text.empty()) return 0;
  const Prefix prefix = read_prefix(text, 0);
  return prefix.complete ? static_cast<int>(prefix.length) : 0;
}

std::size_t valid_utf8_end(std::string_view text, std::size_t from) {
  std::size_t at = from;
  while (at < text.size()) {
    // Eight ASCII bytes at a time: most text is ASCII.
    std::uint64_t word;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) != 0) break;
      at += sizeof word;
    }
    if (at >= text.size()) break;
    if (byte_at(text, at) < 0x80) {
      ++at;
      continue;
    }
    const Prefix prefix = read_prefix(text, at);
    if (!prefix.complete) return at;
    at += prefix.length;
  }
  return at;
}

bool is_valid_utf8(std::string_view text) { return valid_utf8_end(text) == text.size(); }

std::size_t ill_formed_length(std::string_view text, std::size_t at) {
  return read_prefix(text, at).length;
}

std::size_t incomplete_tail(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::size_t at = text.size() - back;
    if ((byte_at(text, at) & 0xC0) == 0x80) continue;  // a continuation byte: look further left
    const Prefix prefix = read_prefix(text, at);
    return !prefix.complete && prefix.truncated && prefix.length == back ? back : 0;
  }
  return 0;
}

std::string replace_ill_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = valid_utf8_end(text, at);
    out.append(text.substr(at, end - at));
    if (end == text.size()) break;
    out.append(kReplacement);
    at = end + ill_formed_length(text, end);
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxBytes = 80;
  std::string out = "\"";
  std::size_t pos = 0;
  while (pos < text.size() && pos < kMaxBytes) {
    const int length = utf8_sequence_length(text.substr(pos));
    const auto lead = static_cast<unsigned char>(text[pos]);
    if (length == 0 || lead < 0x20 || lead == 0x7f) {
      out += fmt::format("\\x{:02x}", lead);
      pos += 1;
      continue;
    }
    out += text.substr(pos, length);
    pos += length;
  }
  out += pos < text.size() ? fmt::format("...\" ({} bytes)", text.size()) : std::string("\"");
  return out;
}

void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto put = [&](std::uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace dsmoe
