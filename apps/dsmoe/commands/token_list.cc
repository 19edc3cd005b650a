// A strict reader of lists of token ids.
#include "commands/token_list.h"

#include <charconv>
#include <cstdio>
#include <limits>

#include "base/error.h"
#include "base/mapped_file.h"

namespace dsmoe::app {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Reader {
 public:
  Reader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  std::vector<int32_t> read() {
    std::vector<int32_t> ids;
    skip_space();
    const bool bracketed = take('[');
    while (skip_space(), at_ < text_.size() && text_[at_] != ']') {
      ids.push_back(read_id());
      const bool spaced = skip_space();
      const bool comma = take(',');
      if (at_ < text_.size() && text_[at_] != ']' && !spaced && !comma) refuse("a comma");
    }
    if (bracketed && !take(']')) refuse("']'");
    skip_space();
    if (at_ < text_.size()) refuse("the end of the list");
    if (ids.empty()) fail(ErrorKind::input, "{}: no token ids; expected ids such as 1,2,3", what_);
    return ids;
  }

 private:
  bool skip_space() {
    const std::size_t before = at_;
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ > before;
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  int32_t read_id() {
    int32_t id = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), id);
    if (error == std::errc::result_out_of_range || (error == std::errc() && id < 0)) {
      fail(ErrorKind::input, "{}: byte {}: a token id lies between 0 and {}", what_, at_,
           std::numeric_limits<int32_t>::max());
    }
    if (error != std::errc()) refuse("a token id");
    at_ += static_cast<std::size_t>(end - begin);
    return id;
  }
  [[noreturn]] void refuse(std::string_view expected) const {
    if (at_ >= text_.size()) {
      fail(ErrorKind::input, "{}: expected {}, found the end", what_, expected);
    }
    const auto byte = static_cast<unsigned char>(text_[at_]);
    const bool printable = byte > 0x20 && byte < 0x7f;
    fail(ErrorKind::input, "{}: byte {}: expected {}, found {}", what_, at_, expected,
         printable ? fmt::format("'{}'", text_[at_]) : fmt::format("byte 0x{:02x}", byte));
  }

  std::string_view text_, what_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<int32_t> parse_token_list(std::string_view text, std::string_view what) {
  return Reader(text, what).read();
}

std::vector<int32_t> read_token_file(const std::string& path) {
  return parse_token_list(read_text_file(path), path);
}

std::string read_standard_input() {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::string text;
  for (std::size_t count = 1; count > 0;) {
    const std::size_t size = text.size();
    text.resize(size + kPiece);
    count = std::fread(text.data() + size, 1, kPiece, stdin);
    text.resize(size + count);
    if (text.size() > kMaxTextBytes) {
      fail(ErrorKind::input, "standard input: at most {} bytes are expected of a text",
           kMaxTextBytes);
    }
  }
  if (std::ferror(stdin) != 0) fail_errno("cannot read standard input");
  return text;
}

std::string read_text_file(const std::string& path) { return read_small_file(path, kMaxTextBytes); }

}  // namespace dsmoe::app
