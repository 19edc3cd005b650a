// The header as one string, and places for the tensors behind it.
#include "store/gguf/gguf_writer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"
#include "store/gguf/gguf_file.h"

namespace dsmoe::store::gguf {
namespace {

constexpr uint64_t kAlignment = 32;  // the format's default
constexpr uint32_t kVersion = 3;

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_string(std::string& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

uint64_t padded(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

uint32_t number_of(ValueType type) { return static_cast<uint32_t>(type); }

}  // namespace

void Metadata::begin(std::string_view key, uint32_t type) {
  DSMOE_CHECK(std::ranges::find(keys_, key) == keys_.end(), "{} is given twice", key);
  keys_.emplace_back(key);
  append_string(bytes_, key);
  append(bytes_, type);
}

void Metadata::integer(std::string_view key, int64_t value) {
  if (value < 0 || value > std::numeric_limits<uint32_t>::max()) {
    fail(ErrorKind::input, "{} {} does not fit into 32 bits, as GGUF has it", key, value);
  }
  begin(key, number_of(ValueType::uint32));
  append(bytes_, static_cast<uint32_t>(value));
}

void Metadata::number(std::string_view key, double value) {
  begin(key, number_of(ValueType::float32));
  append(bytes_, static_cast<float>(value));
}

void Metadata::boolean(std::string_view key, bool value) {
  begin(key, number_of(ValueType::boolean));
  append(bytes_, static_cast<uint8_t>(value ? 1 : 0));
}

void Metadata::text(std::string_view key, std::string_view value) {
  begin(key, number_of(ValueType::string));
  append_string(bytes_, value);
}

void Metadata::texts(std::string_view key, std::span<const std::string> values) {
  begin(key, number_of(ValueType::array));
  append(bytes_, number_of(ValueType::string));
  append(bytes_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) append_string(bytes_, value);
}

void Metadata::integers(std::string_view key, std::span<const int32_t> values) {
  begin(key, number_of(ValueType::array));
  append(bytes_, number_of(ValueType::int32));
  append(bytes_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) append(bytes_, value);
}

Writer::Writer(const std::filesystem::path& path, const Metadata& metadata,
               std::vector<TensorSpec> tensors)
    : file_(path) {
  std::string header = "GGUF";
  append(header, kVersion);
  append(header, static_cast<uint64_t>(tensors.size()));
  append(header, metadata.size());
  header += metadata.bytes();
  uint64_t end = 0;
  for (TensorSpec& spec : tensors) {
    const int64_t row = spec.shape[spec.shape.rank() - 1];
    const BlockSize block = block_size(spec.type);
    if (spec.name.size() >= kMaxNameBytes) {
      fail(ErrorKind::input, "{}: GGUF names have at most {} bytes; the tensor {} does not",
           path.string(), kMaxNameBytes - 1, in_quotes(spec.name));
    }
    if (row % block.elements != 0) {
      fail(ErrorKind::input,
           "{}: {} holds {} numbers in a block, and rows of {} have {}; give another --type",
           path.string(), name_of(spec.type), block.elements, spec.name, row);
    }
    append_string(header, spec.name);
    append(header, static_cast<uint32_t>(spec.shape.rank()));
    for (int axis = spec.shape.rank() - 1; axis >= 0; --axis) append(header, spec.shape[axis]);
    append(header, static_cast<uint32_t>(spec.type));
    append(header, end);
    const auto num_bytes =
        static_cast<uint64_t>(gguf::num_bytes(spec.type, spec.shape.num_elements()));
    DSMOE_CHECK(index_.try_emplace(spec.name, slots_.size()).second, "two tensors are called {}",
                spec.name);
    slots_.push_back({.spec = std::move(spec), .offset = end, .num_bytes = num_bytes});
    end = padded(end + num_bytes);
  }
  header.resize(padded(header.size()), '\0');
  for (Slot& slot : slots_) slot.offset += header.size();
  end_ = header.size() + end;
  file_.write_at(0, std::as_bytes(std::span(header)));
}

const Writer::Slot& Writer::slot(std::string_view name) const {
  const auto found = index_.find(name);
  DSMOE_CHECK(found != index_.end(), "tensor {} was not declared for {}", name,
              file_.target().string());
  return slots_[found->second];
}

void Writer::write(std::string_view name, uint64_t offset, std::span<const std::byte> bytes) {
  const Slot& target = slot(name);
  DSMOE_CHECK(offset <= target.num_bytes && bytes.size() <= target.num_bytes - offset,
              "bytes [{}, +{}) of tensor {} of {}", offset, bytes.size(), name, target.num_bytes);
  file_.write_at(target.offset + offset, bytes);
  slots_[index_.find(name)->second].written += bytes.size();
}

void Writer::finish() {
  for (const Slot& slot : slots_) {
    DSMOE_CHECK(slot.written == slot.num_bytes, "tensor {} has {} of its {} bytes", slot.spec.name,
                slot.written, slot.num_bytes);
  }
  // What reads the last tensor's padding finds zeros.
  if (!slots_.empty() && slots_.back().offset + slots_.back().num_bytes < end_) {
    const std::byte zero{0};
    file_.write_at(end_ - 1, {&zero, 1});
  }
  file_.commit();
}

}  // namespace dsmoe::store::gguf
