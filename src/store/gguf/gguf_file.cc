// Reader of GGUF: one pass over the header in which every length is checked before it is used.
#include "store/gguf/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe::store::gguf {
namespace {

using tensor::Shape;

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr std::array<std::string_view, 13> kTypeNames = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};

std::string_view name_of(ValueType type) { return kTypeNames[static_cast<std::size_t>(type)]; }

// Bytes of one element; of a string at least: its length.
uint64_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::uint8:
    case ValueType::int8:
    case ValueType::boolean:
      return 1;
    case ValueType::uint16:
    case ValueType::int16:
      return 2;
    case ValueType::uint32:
    case ValueType::int32:
    case ValueType::float32:
      return 4;
    default:
      return 8;
  }
}

template <class T>
T load(std::span<const std::byte> bytes, uint64_t idx = 0) {
  T value{};
  std::memcpy(&value, bytes.data() + idx * sizeof(T), sizeof(T));
  return value;
}

class Parser {
 public:
  Parser(std::span<const std::byte> file, std::string_view what) : file_(file), what_(what) {}

  Header parse() {
    check_magic();
    const uint64_t num_tensors = number<uint64_t>("the number of tensors");
    const uint64_t num_values = number<uint64_t>("the number of metadata values");
    check_count(num_tensors, kMaxTensors, "tensors");
    check_count(num_values, kMaxValues, "metadata values");
    for (uint64_t i = 0; i < num_values; ++i) read_value();
    header_.alignment = alignment();
    header_.tensors.reserve(num_tensors);
    for (uint64_t i = 0; i < num_tensors; ++i) read_tensor();
    place_tensors();
    sort_names();
    return std::move(header_);
  }

 private:
  void check_magic() {
    if (file_.size() < kMagic.size() ||
        std::memcmp(file_.data(), kMagic.data(), kMagic.size()) != 0) {
      fail(ErrorKind::input, "{}: a GGUF file begins with \"GGUF\", this one does not", what_);
    }
    at_ = kMagic.size();
    const auto version = number<uint32_t>("the version");
    if (version == 2 || version == 3) return;
    if ((version & 0xffffu) == 0) {
      fail(ErrorKind::input, "{}: the numbers of this GGUF file are big-endian, which is not read",
           what_);
    }
    fail(ErrorKind::input, "{}: GGUF version {}; 2 and 3 are read", what_, version);
  }

  void check_count(uint64_t count, uint64_t most, std::string_view of_what) const {
    if (count > most) {
      fail(ErrorKind::input, "{}: claims {} {}, at most {} are read", what_, count, of_what, most);
    }
  }

  // The next `count` bytes of the header.
  std::span<const std::byte> take(uint64_t count, std::string_view of_what) {
    const uint64_t left = file_.size() - at_;
    if (count > left) {
      fail(ErrorKind::input, "{}: {} at byte {} needs {} bytes, the file has {} more; is it cut?",
           what_, of_what, at_, count, left);
    }
    const auto part = file_.subspan(at_, count);
    at_ += count;
    return part;
  }

  template <class T>
  T number(std::string_view of_what) {
    return load<T>(take(sizeof(T), of_what));
  }

  std::string_view string(std::string_view of_what) {
    const auto length = number<uint64_t>(of_what);
    const auto bytes = take(length, of_what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // A name that later messages may print.
  std::string identifier(std::string_view of_what, uint64_t most_bytes) {
    const std::string_view text = string(of_what);
    if (text.empty() || text.size() > most_bytes || !is_valid_utf8(text)) {
      fail(ErrorKind::input, "{}: {} must be 1 to {} bytes of UTF-8, found {} bytes: {}", what_,
           of_what, most_bytes, text.size(), in_quotes(text));
    }
    return std::string(text);
  }

  ValueType value_type(const std::string& key) {
    const auto type = number<uint32_t>("the type of a value");
    if (type >= kTypeNames.size()) {
      fail(ErrorKind::input, "{}: {} has the type {}; GGUF defines 0 to {}", what_, in_quotes(key),
           type, kTypeNames.size() - 1);
    }
    return static_cast<ValueType>(type);
  }

  void read_value() {
    std::string key = identifier("a key", kMaxKeyBytes);
    Value value{.type = value_type(key)};
    if (value.type == ValueType::array) {
      value.is_array = true;
      value.type = value_type(key);
      value.count = number<uint64_t>("the length of an array");
      if (value.type == ValueType::array) {
        fail(ErrorKind::input, "{}: {} is an array of arrays, which is not read", what_,
             in_quotes(key));
      }
      if (value.count > (file_.size() - at_) / least_bytes(value.type)) {
        fail(ErrorKind::input, "{}: {} claims {} elements, more than the file has bytes for", what_,
             in_quotes(key), value.count);
      }
    }
    value.bytes = elements(value, key);
    const auto [slot, is_new] = header_.values.try_emplace(std::move(key), value);
    if (!is_new)
      fail(ErrorKind::input, "{}: the key {} appears twice", what_, in_quotes(slot->first));
  }

  std::span<const std::byte> elements(const Value& value, const std::string& key) {
    const uint64_t begin = at_;
    if (value.type == ValueType::string) {
      for (uint64_t i = 0; i < value.count; ++i) string("a string");
    } else {
      take(value.count * least_bytes(value.type), "a value");
    }
    const auto bytes = file_.subspan(begin, at_ - begin);
    if (value.type == ValueType::boolean) {
      for (const std::byte b : bytes) {
        if (std::to_integer<int>(b) <= 1) continue;
        fail(ErrorKind::input, "{}: {} holds {}; a bool is 0 or 1", what_, in_quotes(key),
             std::to_integer<int>(b));
      }
    }
    return bytes;
  }

  uint64_t alignment() const {
    const auto found = header_.values.find(kAlignmentKey);
    if (found == header_.values.end()) return header_.alignment;
    const Value& value = found->second;
    const bool is_number = value.type == ValueType::uint32 && !value.is_array;
    const uint64_t alignment = is_number ? load<uint32_t>(value.bytes) : 0;
    if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
      fail(ErrorKind::input, "{}: {} must be a uint32, a power of two up to {}, found {}", what_,
           kAlignmentKey, kMaxAlignment,
           is_number ? std::to_string(alignment) : std::string(name_of(value.type)));
    }
    return alignment;
  }

  void read_tensor() {
    TensorEntry entry{.name = identifier("the name of a tensor", kMaxNameBytes)};
    entry.shape = read_shape(entry.name);
    const auto type = number<uint32_t>("the type of a tensor");
    if (!is_readable(type)) {
      fail(ErrorKind::input,
           "{}: tensor {} has type {}, which dsmoe does not read; F32, F16, BF16, Q8_0, Q4_0, "
           "Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are read",
           what_, in_quotes(entry.name), name_of_type(type));
    }
    entry.type = static_cast<TensorType>(type);
    const BlockSize block = block_size(entry.type);
    const int64_t row = entry.shape[entry.shape.rank() - 1];
    if (row % block.elements != 0) {
      fail(ErrorKind::input, "{}: tensor {} has rows of {} numbers; {} holds {} in a block", what_,
           in_quotes(entry.name), row, name_of(entry.type), block.elements);
    }
    entry.num_bytes =
        static_cast<uint64_t>(gguf::num_bytes(entry.type, entry.shape.num_elements()));
    entry.offset = number<uint64_t>("the offset of a tensor");
    header_.tensors.push_back(std::move(entry));
  }

  Shape read_shape(const std::string& name) {
    const auto rank = number<uint32_t>("the dimensions of a tensor");
    if (rank < 1 || rank > Shape::kMaxRank) {
      fail(ErrorKind::input, "{}: tensor {} has {} dimensions; 1 to {} are read", what_,
           in_quotes(name), rank, Shape::kMaxRank);
    }
    std::array<int64_t, Shape::kMaxRank> dims{};
    uint64_t count = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      const auto dim = number<uint64_t>("a dimension");
      // The bound of tensor::Shape, found here first so that the file is blamed.
      if (dim == 0 || dim > kMaxElements / count) {
        fail(ErrorKind::input, "{}: the shape of tensor {} has {} elements", what_, in_quotes(name),
             dim == 0 ? "no" : "too many");
      }
      count *= dim;
      dims[rank - 1 - i] = static_cast<int64_t>(dim);
    }
    return Shape(std::span<const int64_t>(dims.data(), rank));
  }

  uint64_t padded(uint64_t offset) const {
    return (offset + header_.alignment - 1) / header_.alignment * header_.alignment;
  }

  // The tensors must tile the data: no hole could hide bytes, no two tensors share any.
  void place_tensors() {
    const uint64_t data_begin = padded(at_);
    auto& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
      return std::pair(a.offset, a.num_bytes) < std::pair(b.offset, b.num_bytes);
    });
    uint64_t end = 0;  // of the data so far, padded
    for (TensorEntry& entry : tensors) {
      if (entry.offset != end) {
        fail(ErrorKind::input,
             "{}: tensor {} begins at byte {} of the data, the one before it ends at {}: {}", what_,
             in_quotes(entry.name), entry.offset, end,
             entry.offset > end ? "a hole" : "they overlap");
      }
      const uint64_t data_bytes = file_.size() < data_begin ? 0 : file_.size() - data_begin;
      if (end > data_bytes || entry.num_bytes > data_bytes - end) {
        fail(ErrorKind::input,
             "{}: tensor {} needs {} bytes from byte {} of the data, which has {}; is it cut?",
             what_, in_quotes(entry.name), entry.num_bytes, end, data_bytes);
      }
      entry.offset = data_begin + end;
      end = padded(end + entry.num_bytes);
    }
    if (!tensors.empty() && file_.size() > data_begin + end) {
      fail(ErrorKind::input, "{}: the tensors end at byte {}, the file has {}", what_,
           data_begin + end, file_.size());
    }
  }

  void sort_names() {
    auto& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    const auto twin = std::adjacent_find(
        tensors.begin(), tensors.end(),
        [](const TensorEntry& a, const TensorEntry& b) { return a.name == b.name; });
    if (twin != tensors.end()) {
      fail(ErrorKind::input, "{}: two tensors are called {}", what_, in_quotes(twin->name));
    }
  }

  static constexpr uint64_t kMaxElements = uint64_t{1} << 56;  // their bytes fit too

  std::span<const std::byte> file_;
  std::string_view what_;
  uint64_t at_ = 0;
  Header header_;
};

// Of an integer type; nullopt: it is none, or beyond an int64.
std::optional<int64_t> integer_at(const Value& value, uint64_t idx) {
  switch (value.type) {
    case ValueType::uint8:
      return load<uint8_t>(value.bytes, idx);
    case ValueType::int8:
      return load<int8_t>(value.bytes, idx);
    case ValueType::uint16:
      return load<uint16_t>(value.bytes, idx);
    case ValueType::int16:
      return load<int16_t>(value.bytes, idx);
    case ValueType::uint32:
      return load<uint32_t>(value.bytes, idx);
    case ValueType::int32:
      return load<int32_t>(value.bytes, idx);
    case ValueType::int64:
      return load<int64_t>(value.bytes, idx);
    case ValueType::uint64: {
      const auto number = load<uint64_t>(value.bytes, idx);
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

std::string_view string_at(std::span<const std::byte> bytes, uint64_t& at) {
  const auto length = load<uint64_t>(bytes.subspan(at));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + at + 8, length);
  at += 8 + length;
  return text;
}

}  // namespace

Header parse(std::span<const std::byte> file, std::string_view what) {
  return Parser(file, what).parse();
}

bool is_gguf(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  try {
    const MappedFile file(path);
    return file.bytes().size() >= kMagic.size() &&
           std::memcmp(file.bytes().data(), kMagic.data(), kMagic.size()) == 0;
  } catch (const Error&) {
    return false;
  }
}

File File::open(const std::filesystem::path& path) {
  MappedFile file(path);
  Header header = parse(file.bytes(), path.string());
  return File(std::move(file), std::move(header));
}

const TensorEntry* File::find_tensor(std::string_view name) const {
  const auto& tensors = header_.tensors;
  const auto found = std::ranges::lower_bound(tensors, name, {}, &TensorEntry::name);
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

void File::refuse(std::string_view key, std::string_view expected, std::string_view found) const {
  fail(ErrorKind::input, "{}: {} must be {}, found {}", what(), key, expected, found);
}

void File::refuse_absent(std::string_view key) const {
  fail(ErrorKind::input, "{}: has no {}", what(), key);
}

const Value* File::find(std::string_view key) const {
  const auto found = header_.values.find(key);
  return found == header_.values.end() ? nullptr : &found->second;
}

const Value* File::find_one(std::string_view key) const {
  const Value* value = find(key);
  if (value != nullptr && value->is_array) {
    refuse(key, "one value", fmt::format("{} in an array", value->count));
  }
  return value;
}

const Value* File::find_many(std::string_view key) const {
  const Value* value = find(key);
  if (value != nullptr && !value->is_array) refuse(key, "an array", name_of(value->type));
  return value;
}

bool File::is_array(std::string_view key) const {
  const Value* value = find(key);
  return value != nullptr && value->is_array;
}

std::vector<std::string> File::keys_with(std::string_view prefix) const {
  std::vector<std::string> keys;
  for (auto at = header_.values.lower_bound(prefix);
       at != header_.values.end() && at->first.starts_with(prefix); ++at) {
    keys.push_back(at->first);
  }
  return keys;
}

std::optional<int64_t> File::integer(std::string_view key) const {
  const Value* value = find_one(key);
  if (value == nullptr) return std::nullopt;
  const auto number = integer_at(*value, 0);
  if (!number) refuse(key, "an integer", name_of(value->type));
  return number;
}

std::optional<double> File::number(std::string_view key) const {
  const Value* value = find_one(key);
  if (value == nullptr) return std::nullopt;
  if (const auto number = integer_at(*value, 0)) return static_cast<double>(*number);
  double number = 0;
  if (value->type == ValueType::float32) {
    const auto single = load<float>(value->bytes);
    // 1e-6 was meant where the float says 9.99999997e-07.
    const std::string shortest = fmt::format("{}", single);
    std::from_chars(shortest.data(), shortest.data() + shortest.size(), number);
  } else if (value->type == ValueType::float64) {
    number = load<double>(value->bytes);
  } else {
    refuse(key, "a number", name_of(value->type));
  }
  if (!std::isfinite(number)) refuse(key, "a finite number", fmt::format("{}", number));
  return number;
}

std::optional<bool> File::boolean(std::string_view key) const {
  const Value* value = find_one(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::boolean) refuse(key, "a bool", name_of(value->type));
  return load<uint8_t>(value->bytes) != 0;
}

std::optional<std::string> File::text(std::string_view key) const {
  const Value* value = find_one(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::string) refuse(key, "a string", name_of(value->type));
  uint64_t at = 0;
  const std::string_view text = string_at(value->bytes, at);
  if (!is_valid_utf8(text)) refuse(key, "valid UTF-8", in_quotes(text));
  return std::string(text);
}

std::optional<std::vector<std::string_view>> File::texts(std::string_view key) const {
  const Value* value = find_many(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != ValueType::string) refuse(key, "an array of strings", name_of(value->type));
  std::vector<std::string_view> texts;
  texts.reserve(value->count);
  for (uint64_t i = 0, at = 0; i < value->count; ++i) {
    texts.push_back(string_at(value->bytes, at));
    if (is_valid_utf8(texts.back())) continue;
    refuse(fmt::format("{}[{}]", key, i), "valid UTF-8", in_quotes(texts.back()));
  }
  return texts;
}

std::optional<std::vector<int64_t>> File::integers(std::string_view key) const {
  const Value* value = find_many(key);
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = integer_at(*value, i);
    if (!number) refuse(key, "an array of integers", name_of(value->type));
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace dsmoe::store::gguf
