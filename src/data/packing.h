// Places pieces of given lengths into rows of fixed length with little room left over.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsmoe::data {

// Best fit in order: each piece goes into the open row whose remaining room is smallest among those
// that hold it (of several, the one used last), else into a new row. A pure function of the
// lengths.
class RowPacker {
 public:
  explicit RowPacker(int64_t row_length);

  // Row r holds pieces()[row_begins()[r] .. row_begins()[r + 1]), in the order they came. Lengths
  // must be in 1..row_length; length 0 means: leave this piece out. Buffers are kept between calls.
  void pack(std::span<const int32_t> lengths);

  int64_t num_rows() const { return static_cast<int64_t>(row_begins_.size()) - 1; }
  std::span<const uint32_t> row_begins() const { return row_begins_; }
  std::span<const uint32_t> pieces() const { return pieces_; }

 private:
  int32_t take_row_with_room(int32_t length);
  void put_row(int32_t row, int32_t room);

  int64_t row_length_;
  std::vector<int32_t> last_with_room_;  // per room: the row used last, -1 if none
  std::vector<uint64_t> rooms_;          // bit per room: some row has it
  std::vector<int32_t> next_same_room_;  // per row: the row before it in last_with_room_'s list
  std::vector<int32_t> row_of_piece_, room_of_row_;
  std::vector<uint32_t> row_begins_{0}, pieces_;
};

}  // namespace dsmoe::data
