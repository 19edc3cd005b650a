// Cuts a batch into chunks of tokens for the head, whose logits are too many to be held at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace dsmoe::model {

// The rows of a batch cut into chunks of tokens whose logits are held at once.
class HeadChunks {
 public:
  int64_t begin = 0, end = 0;        // tokens of the current chunk
  std::vector<int32_t> row_offsets;  // of the rows in it, relative to begin

  void start(std::span<const int32_t> row_lengths, int64_t max_tokens) {
    row_lengths_ = row_lengths;
    max_tokens_ = max_tokens;
    row_ = done_ = end = 0;
  }

  // Goes on to the next chunk; false when there is none.
  bool next() {
    begin = end;
    row_offsets.assign(1, 0);
    for (; row_ < static_cast<int64_t>(row_lengths_.size()); ++row_, done_ = 0) {
      for (const int64_t length = row_lengths_[row_]; done_ < length;) {
        const int64_t piece = std::min(max_tokens_, length - done_);
        if (end - begin + piece > max_tokens_) return true;
        end += piece;
        done_ += piece;
        row_offsets.push_back(static_cast<int32_t>(end - begin));
      }
    }
    return end > begin;
  }

 private:
  std::span<const int32_t> row_lengths_;
  int64_t max_tokens_ = 0;
  int64_t row_ = 0, done_ = 0;  // the next token: row and place in it
};

}  // namespace dsmoe::model
