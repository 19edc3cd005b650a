// Cuts a byte stream into records at given delimiters and knows where each one began.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_stream.h"

namespace dsmoe::data {

// A place in the (decompressed) text.
struct TextPosition {
  uint64_t offset = 0;  // bytes from the start
  uint64_t line = 1;

  friend bool operator==(const TextPosition&, const TextPosition&) = default;
};

struct RecordReaderOptions {
  std::string name;                     // the file, for messages
  std::vector<std::string> delimiters;  // none empty; where two match, the earlier, then the longer
  size_t max_record_bytes = 0;
  std::string record_noun;       // "document", "line": in the message about the limit
  std::string too_long_advice;   // what the user can do then
  bool drop_line_break = false;  // a line break right after a delimiter belongs to the delimiter
};

// Holds at most one record and one read-ahead buffer.
class RecordReader {
 public:
  RecordReader(ByteStream& stream, RecordReaderOptions options);

  // The next record without its delimiter; false at the end. What follows the last delimiter is a
  // record unless it is empty. A byte-order mark at the very start is dropped. Throws Error(input)
  // on a record longer than the limit.
  bool next(std::string& record);

  // Where the record that next() gave begins.
  TextPosition position() const { return position_; }

 private:
  struct Match {
    size_t begin, length;
  };
  std::optional<Match> find_delimiter(size_t limit);
  bool read_more();
  void drop(size_t count);
  bool drop_prefix(std::string_view prefix);

  ByteStream& stream_;
  RecordReaderOptions options_;
  size_t longest_delimiter_ = 0;
  std::string buffer_;
  size_t consumed_ = 0;  // bytes of buffer_ that are already given out
  size_t scanned_ = 0;   // no delimiter begins before this position
  bool ended_ = false, started_ = false;
  TextPosition position_, next_position_;
};

// Throws Error(input) naming file, line and offset unless `text`, which begins at `start` of the
// file, is valid UTF-8.
void check_utf8(std::string_view text, TextPosition start, std::string_view name);

}  // namespace dsmoe::data
