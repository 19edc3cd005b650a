// Reader of safetensors: the header parsed without a tree, then every rule of the format checked.
#include "store/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "store/json_cursor.h"

namespace dsmoe::store {
namespace {

using tensor::DType;
using tensor::Shape;

static_assert(std::endian::native == std::endian::little,
              "tensor bytes are little-endian in the format");

constexpr std::size_t kLengthBytes = 8;
constexpr std::array kSupported = {DType::F64, DType::F32, DType::BF16, DType::F16,
                                   DType::I64, DType::I32, DType::I8,   DType::U8};
constexpr std::array<std::string_view, 14> kUnsupported = {
    "BOOL",        "F4",          "F6_E2M3", "F6_E3M2", "F8_E5M2", "F8_E4M3", "F8_E8M0",
    "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",     "U16",     "U32",     "C64",     "U64"};

class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view what, uint64_t data_begin,
               uint64_t file_size)
      : cursor_(text, what),
        what_(what),
        data_begin_(data_begin),
        data_size_(file_size - data_begin) {}

  SafetensorsHeader parse() {
    cursor_.open_object();
    bool has_metadata = false;
    while (std::optional<std::string> key = cursor_.next_key()) {
      if (*key != "__metadata__") {
        parse_tensor(std::move(*key));
        continue;
      }
      if (std::exchange(has_metadata, true)) refuse_duplicate("__metadata__");
      parse_metadata();
    }
    cursor_.finish();
    check_names();
    check_layout();
    return std::move(header_);
  }

 private:
  [[noreturn]] void refuse_duplicate(std::string_view name) const {
    fail(ErrorKind::input, "{}: the key {} appears twice in the header", what_, in_quotes(name));
  }

  void parse_metadata() {
    cursor_.open_object();
    while (std::optional<std::string> key = cursor_.next_key()) {
      if (header_.metadata.size() >= kMaxMetadataEntries) {
        fail(ErrorKind::input, "{}: __metadata__ has more than {} entries", what_,
             kMaxMetadataEntries);
      }
      const auto [slot, inserted] = header_.metadata.try_emplace(std::move(*key));
      if (!inserted) {
        fail(ErrorKind::input, "{}: the key {} appears twice in __metadata__", what_,
             in_quotes(slot->first));
      }
      slot->second = cursor_.read_string();
    }
  }

  void parse_tensor(std::string name) {
    if (header_.tensors.size() >= kMaxTensors) {
      fail(ErrorKind::input, "{}: more than {} tensors in one file", what_, kMaxTensors);
    }
    std::optional<DType> dtype;
    std::optional<Shape> shape;
    std::optional<std::pair<uint64_t, uint64_t>> offsets;
    const auto once = [&](const auto& field, std::string_view key) {
      if (field)
        fail(ErrorKind::input, "{}: tensor {} has the key \"{}\" twice", what_, in_quotes(name),
             key);
    };
    cursor_.open_object();
    while (const std::optional<std::string> key = cursor_.next_key()) {
      if (*key == "dtype") {
        once(dtype, *key);
        dtype = parse_dtype(name);
      } else if (*key == "shape") {
        once(shape, *key);
        shape = parse_shape(name);
      } else if (*key == "data_offsets") {
        once(offsets, *key);
        offsets = parse_offsets(name);
      } else {
        fail(ErrorKind::input,
             "{}: tensor {} has the key {}; the format knows dtype, shape and data_offsets", what_,
             in_quotes(name), in_quotes(*key));
      }
    }
    for (const auto& [present, key] :
         {std::pair{dtype.has_value(), "dtype"}, std::pair{shape.has_value(), "shape"},
          std::pair{offsets.has_value(), "data_offsets"}}) {
      if (!present)
        fail(ErrorKind::input, "{}: tensor {} has no \"{}\"", what_, in_quotes(name), key);
    }
    add({.name = std::move(name),
         .dtype = *dtype,
         .shape = *shape,
         .offset = offsets->first,
         .num_bytes = offsets->second - offsets->first});
  }

  DType parse_dtype(std::string_view name) {
    const std::string text = cursor_.read_string();
    for (const DType type : kSupported) {
      if (text == tensor::name_of(type)) return type;
    }
    if (std::find(kUnsupported.begin(), kUnsupported.end(), text) != kUnsupported.end()) {
      fail(ErrorKind::input,
           "{}: tensor {} has type {}, which dsmoe does not read; convert it to F32, F16 or BF16",
           what_, in_quotes(name), text);
    }
    fail(ErrorKind::input, "{}: tensor {} has type {}, which safetensors does not define", what_,
         in_quotes(name), in_quotes(text));
  }

  Shape parse_shape(std::string_view name) {
    std::array<int64_t, Shape::kMaxRank> dims{};
    int rank = 0;
    uint64_t count = 1;
    cursor_.open_array();
    for (; cursor_.next_element(); ++rank) {
      const uint64_t dim = cursor_.read_unsigned();
      if (rank >= Shape::kMaxRank) {
        fail(ErrorKind::input, "{}: tensor {} has more than {} dimensions", what_, in_quotes(name),
             Shape::kMaxRank);
      }
      // The bound of tensor::Shape, found here first so that the file is blamed.
      if (dim > kMaxElements || (dim != 0 && count > kMaxElements / dim)) {
        fail(ErrorKind::input, "{}: the shape of tensor {} has too many elements", what_,
             in_quotes(name));
      }
      count *= dim;
      dims[rank] = static_cast<int64_t>(dim);
    }
    return Shape(std::span<const int64_t>(dims.data(), static_cast<std::size_t>(rank)));
  }

  std::pair<uint64_t, uint64_t> parse_offsets(std::string_view name) {
    std::array<uint64_t, 2> ends{};
    std::size_t count = 0;
    cursor_.open_array();
    for (; cursor_.next_element(); ++count) {
      const uint64_t value = cursor_.read_unsigned();
      if (count < ends.size()) ends[count] = value;
    }
    if (count != ends.size()) {
      fail(ErrorKind::input, "{}: tensor {} has {} data_offsets, expected begin and end", what_,
           in_quotes(name), count);
    }
    if (ends[0] > ends[1]) {
      fail(ErrorKind::input, "{}: tensor {} begins at {} and ends before it, at {}", what_,
           in_quotes(name), ends[0], ends[1]);
    }
    if (ends[1] > data_size_) {
      fail(ErrorKind::input,
           "{}: tensor {} ends at byte {} of the data, the file has only {}; is it truncated?",
           what_, in_quotes(name), ends[1], data_size_);
    }
    return {ends[0], ends[1]};
  }

  void add(TensorEntry entry) {
    const uint64_t expected =
        static_cast<uint64_t>(entry.shape.num_elements()) * tensor::size_of(entry.dtype);
    if (entry.num_bytes != expected) {
      fail(ErrorKind::input, "{}: tensor {} is {} {} and needs {} bytes, its data_offsets hold {}",
           what_, in_quotes(entry.name), tensor::name_of(entry.dtype), to_string(entry.shape),
           expected, entry.num_bytes);
    }
    entry.offset += data_begin_;
    header_.tensors.push_back(std::move(entry));
  }

  void check_names() {
    auto& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    const auto twin = std::adjacent_find(
        tensors.begin(), tensors.end(),
        [](const TensorEntry& a, const TensorEntry& b) { return a.name == b.name; });
    if (twin != tensors.end()) refuse_duplicate(twin->name);
  }

  // The tensors must tile the data: no hole could hide bytes, no two tensors share any.
  void check_layout() const {
    std::vector<const TensorEntry*> order;
    order.reserve(header_.tensors.size());
    for (const TensorEntry& entry : header_.tensors) order.push_back(&entry);
    // Empty tensors first among those that begin at one place, as they end there too.
    std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
      return std::pair(a->offset, a->num_bytes) < std::pair(b->offset, b->num_bytes);
    });
    uint64_t end = data_begin_;
    for (const TensorEntry* entry : order) {
      if (entry->offset != end) {
        fail(ErrorKind::input,
             "{}: tensor {} begins at byte {} of the data, the one before it ends at {}: {}", what_,
             in_quotes(entry->name), entry->offset - data_begin_, end - data_begin_,
             entry->offset > end ? "a hole" : "they overlap");
      }
      end += entry->num_bytes;
    }
    if (end - data_begin_ != data_size_) {
      fail(ErrorKind::input, "{}: the tensors end at byte {} of the data, the file has {}", what_,
           end - data_begin_, data_size_);
    }
  }

  static constexpr uint64_t kMaxElements = uint64_t{1} << 59;

  JsonCursor cursor_;
  std::string_view what_;
  uint64_t data_begin_;
  uint64_t data_size_;
  SafetensorsHeader header_;
};

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view what) {
  if (file.size() < kLengthBytes) {
    fail(ErrorKind::input,
         "{}: {} bytes, a safetensors file has at least 8 for the length of its header", what,
         file.size());
  }
  uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (length > kMaxHeaderBytes) {
    fail(ErrorKind::input,
         "{}: the header claims {} bytes, at most {} are read; is it a safetensors file?", what,
         length, kMaxHeaderBytes);
  }
  if (length > file.size() - kLengthBytes) {
    fail(ErrorKind::input, "{}: the header claims {} bytes, the file has only {} after its length",
         what, length, file.size() - kLengthBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    fail(ErrorKind::input, "{}: the header must begin with '{{', found {}", what,
         text.empty() ? "an empty header" : in_quotes(text.substr(0, 1)));
  }
  return HeaderParser(text, what, kLengthBytes + length, file.size()).parse();
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile file(path);
  SafetensorsHeader header = parse_safetensors(file.bytes(), path.string());
  return SafetensorsFile(std::move(file), std::move(header));
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto& tensors = header_.tensors;
  const auto found = std::ranges::lower_bound(tensors, name, {}, &TensorEntry::name);
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr)
    fail(ErrorKind::input, "{}: has no tensor {}", path().string(), in_quotes(name));
  return *entry;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.bytes().subspan(entry.offset, entry.num_bytes);
}

void SafetensorsFile::read(const TensorEntry& entry, std::span<std::byte> out,
                           uint64_t offset) const {
  DSMOE_CHECK(offset <= entry.num_bytes && out.size() <= entry.num_bytes - offset,
              "bytes [{}, +{}) of tensor {} of {} bytes", offset, out.size(), entry.name,
              entry.num_bytes);
  file_.read(entry.offset + offset, out);
}

}  // namespace dsmoe::store
