// Searches a growing buffer once, keeping back only what may be the start of a delimiter.
#include "data/record_reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe::data {
namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

RecordReader::RecordReader(ByteStream& stream, RecordReaderOptions options)
    : stream_(stream), options_(std::move(options)) {
  for (const std::string& delimiter : options_.delimiters) {
    if (delimiter.empty()) {
      fail(ErrorKind::usage, "an empty separator would end a document at every byte");
    }
    longest_delimiter_ = std::max(longest_delimiter_, delimiter.size());
  }
}

bool RecordReader::read_more() {
  if (ended_) return false;
  if (consumed_ > 0) {
    buffer_.erase(0, consumed_);
    scanned_ -= consumed_;
    consumed_ = 0;
  }
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + kReadBytes);
  const size_t count = stream_.read(std::span(buffer_).subspan(old_size));
  buffer_.resize(old_size + count);
  ended_ = count == 0;
  return !ended_;
}

void RecordReader::drop(size_t count) {
  const auto from = buffer_.begin() + static_cast<std::ptrdiff_t>(consumed_);
  next_position_.offset += count;
  next_position_.line +=
      static_cast<uint64_t>(std::count(from, from + static_cast<std::ptrdiff_t>(count), '\n'));
  consumed_ += count;
  scanned_ = std::max(scanned_, consumed_);
}

bool RecordReader::drop_prefix(std::string_view prefix) {
  while (buffer_.size() - consumed_ < prefix.size() && read_more()) {
  }
  const bool found = std::string_view(buffer_).substr(consumed_).starts_with(prefix);
  if (found) drop(prefix.size());
  return found;
}

// The first delimiter that begins before `limit`.
std::optional<RecordReader::Match> RecordReader::find_delimiter(size_t limit) {
  std::optional<Match> best;
  for (const std::string& delimiter : options_.delimiters) {
    const size_t end = best ? best->begin + 1 : limit;
    const std::string_view window =
        std::string_view(buffer_).substr(0, std::min(buffer_.size(), end + delimiter.size() - 1));
    const size_t at = window.find(delimiter, scanned_);
    if (at == std::string_view::npos) continue;
    if (!best || at < best->begin || delimiter.size() > best->length) {
      best = Match{at, delimiter.size()};
    }
  }
  return best;
}

bool RecordReader::next(std::string& record) {
  if (!std::exchange(started_, true)) drop_prefix(kByteOrderMark);
  position_ = next_position_;
  for (;;) {
    // A match this near the end could be part of a longer delimiter that is not read yet.
    const size_t kept_back = ended_ ? 0 : longest_delimiter_;
    const size_t limit = std::max(scanned_, buffer_.size() - std::min(buffer_.size(), kept_back));
    const std::optional<Match> match = find_delimiter(limit);
    const size_t end = match ? match->begin : limit;
    if (end - consumed_ > options_.max_record_bytes) {
      fail(ErrorKind::input,
           "{}: the {} that begins at line {} is longer than the limit of {} bytes; {}",
           options_.name, options_.record_noun, position_.line, options_.max_record_bytes,
           options_.too_long_advice);
    }
    if (match || ended_) {
      if (!match && end == consumed_) return false;
      record.assign(buffer_, consumed_, end - consumed_);
      drop(end - consumed_ + (match ? match->length : 0));
      if (match && options_.drop_line_break && !drop_prefix("\r\n")) drop_prefix("\n");
      return true;
    }
    scanned_ = limit;
    read_more();
  }
}

void check_utf8(std::string_view text, TextPosition start, std::string_view name) {
  const size_t valid = valid_utf8_end(text);
  if (valid == text.size()) return;
  const auto lines =
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(valid), '\n');
  fail(ErrorKind::input,
       "{}: line {}, byte offset {}: byte 0x{:02x} is not valid UTF-8; convert the file to UTF-8",
       name, start.line + static_cast<uint64_t>(lines), start.offset + valid,
       static_cast<unsigned>(static_cast<unsigned char>(text[valid])));
}

}  // namespace dsmoe::data
