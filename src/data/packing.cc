// Rows are listed by their remaining room; a bit set finds the smallest room that is enough.
#include "data/packing.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace dsmoe::data {

RowPacker::RowPacker(int64_t row_length) : row_length_(row_length) {
  DSMOE_CHECK(row_length > 0 && row_length < int64_t{1} << 30, "rows of {} tokens", row_length);
}

// The row is taken out of its list; -1 when no row has room.
int32_t RowPacker::take_row_with_room(int32_t length) {
  size_t word = static_cast<size_t>(length) / 64;
  uint64_t bits = rooms_[word] & (~uint64_t{0} << (length % 64));
  while (bits == 0) {
    if (++word == rooms_.size()) return -1;
    bits = rooms_[word];
  }
  const size_t room = word * 64 + static_cast<size_t>(std::countr_zero(bits));
  const int32_t row = last_with_room_[room];
  last_with_room_[room] = next_same_room_[static_cast<size_t>(row)];
  if (last_with_room_[room] < 0) rooms_[word] &= ~(uint64_t{1} << (room % 64));
  return row;
}

void RowPacker::put_row(int32_t row, int32_t room) {
  room_of_row_[static_cast<size_t>(row)] = room;
  if (room == 0) return;
  next_same_room_[static_cast<size_t>(row)] = last_with_room_[static_cast<size_t>(room)];
  last_with_room_[static_cast<size_t>(room)] = row;
  rooms_[static_cast<size_t>(room) / 64] |= uint64_t{1} << (room % 64);
}

void RowPacker::pack(std::span<const int32_t> lengths) {
  last_with_room_.assign(static_cast<size_t>(row_length_) + 1, -1);
  rooms_.assign(static_cast<size_t>(row_length_) / 64 + 1, 0);
  row_of_piece_.assign(lengths.size(), -1);
  // Never more rows than pieces: reserving keeps later calls from allocating.
  for (auto* rows : {&next_same_room_, &room_of_row_}) {
    rows->clear();
    rows->reserve(lengths.size());
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int32_t length = lengths[i];
    if (length == 0) continue;
    DSMOE_CHECK(length > 0 && length <= row_length_, "a piece of {} tokens in rows of {}", length,
                row_length_);
    int32_t row = take_row_with_room(length);
    if (row < 0) {
      row = static_cast<int32_t>(room_of_row_.size());
      room_of_row_.push_back(static_cast<int32_t>(row_length_));
      next_same_room_.push_back(-1);
    }
    row_of_piece_[i] = row;
    put_row(row, room_of_row_[static_cast<size_t>(row)] - length);
  }
  // Counting sort of the pieces by row.
  row_begins_.reserve(lengths.size() + 1);
  row_begins_.assign(room_of_row_.size() + 1, 0);
  for (const int32_t row : row_of_piece_) {
    if (row >= 0) ++row_begins_[static_cast<size_t>(row) + 1];
  }
  for (size_t r = 1; r < row_begins_.size(); ++r) row_begins_[r] += row_begins_[r - 1];
  pieces_.reserve(lengths.size());
  pieces_.resize(row_begins_.back());
  std::vector<int32_t>& next_slot = next_same_room_;  // done with as a list
  for (size_t r = 0; r < next_slot.size(); ++r) next_slot[r] = static_cast<int32_t>(row_begins_[r]);
  for (size_t i = 0; i < row_of_piece_.size(); ++i) {
    const int32_t row = row_of_piece_[i];
    if (row >= 0)
      pieces_[static_cast<size_t>(next_slot[static_cast<size_t>(row)]++)] =
          static_cast<uint32_t>(i);
  }
}

}  // namespace dsmoe::data
