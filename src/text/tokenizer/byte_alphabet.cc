// Two small tables, built once.
#include "text/tokenizer/byte_alphabet.h"

#include <array>

#include "base/utf8.h"

namespace dsmoe::text {
namespace {

constexpr int kNone = -1;
constexpr std::uint32_t kLastSymbol = 0x143;  // 0x100 + 68 - 1

struct Alphabet {
  std::array<std::uint32_t, 256> symbol{};
  std::array<int, kLastSymbol + 1> byte{};
};

Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(kNone);
  std::uint32_t next = 0x100;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const std::uint32_t symbol = printable ? b : next++;
    alphabet.symbol[b] = symbol;
    alphabet.byte[symbol] = static_cast<int>(b);
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet kAlphabet = make_alphabet();
  return kAlphabet;
}

}  // namespace

std::uint32_t byte_symbol(unsigned char byte) { return alphabet().symbol[byte]; }

std::string to_byte_symbols(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, byte_symbol(static_cast<unsigned char>(c)));
  return out;
}

std::optional<std::string> from_byte_symbols(std::string_view symbols) {
  std::string out;
  for (std::size_t at = 0; at < symbols.size();) {
    const std::uint32_t code = next_code_point(symbols, at);
    if (code > kLastSymbol || alphabet().byte[code] == kNone) return std::nullopt;
    out.push_back(static_cast<char>(alphabet().byte[code]));
  }
  return out;
}

}  // namespace dsmoe::text
