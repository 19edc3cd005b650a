// Writer of safetensors: a header that depends only on what is stored, then each tensor at its
// place.
#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "store/json_cursor.h"
#include "store/safetensors.h"

namespace dsmoe::store {
namespace {

using tensor::DType;
using tensor::TensorSpec;

// The order in which Python's safetensors lays out types, so that equal tensors give equal files
// from both. Larger types first also keeps every tensor aligned to its element.
int layout_rank(DType type) {
  constexpr std::array kOrder = {DType::I64,  DType::F64, DType::F32, DType::I32,
                                 DType::BF16, DType::F16, DType::I8,  DType::U8};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), type) - kOrder.begin());
}

std::string json_string(const std::string& text, std::string_view role) {
  for (std::size_t pos = 0; pos < text.size();) {
    const int length = utf8_sequence_length(std::string_view(text).substr(pos));
    if (length == 0) fail(ErrorKind::input, "the {} {} is not valid UTF-8", role, in_quotes(text));
    pos += static_cast<std::size_t>(length);
  }
  return Json(text).dump();
}

std::string joined(const tensor::Shape& shape) {
  std::string text;
  for (const int64_t dim : shape.dims()) {
    if (!text.empty()) text += ',';
    text += std::to_string(dim);
  }
  return text;
}

}  // namespace

uint64_t num_bytes_of(const TensorSpec& spec) {
  // tensor::Shape holds at most 2^59 elements and types at most 8 bytes: the product fits.
  return static_cast<uint64_t>(spec.shape.num_elements()) * tensor::size_of(spec.dtype);
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const int rank_a = layout_rank(a.dtype);
    const int rank_b = layout_rank(b.dtype);
    return rank_a != rank_b ? rank_a < rank_b : a.name < b.name;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (header.back() != '{') header += ',';
      header += json_string(key, "metadata key") + ":" + json_string(value, "metadata value");
    }
    header += "}";
  }
  uint64_t end = 0;
  for (TensorSpec& spec : tensors) {
    const uint64_t num_bytes = num_bytes_of(spec);
    if (spec.name == "__metadata__")
      fail(ErrorKind::input, "a tensor cannot be called __metadata__");
    if (!index_.try_emplace(spec.name, slots_.size()).second) {
      fail(ErrorKind::input, "{}: two tensors are called {}", path.string(), in_quotes(spec.name));
    }
    if (header.size() > 1) header += ',';
    header += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          json_string(spec.name, "tensor name"), tensor::name_of(spec.dtype),
                          joined(spec.shape), end, end + num_bytes);
    slots_.push_back({.spec = std::move(spec), .offset = end, .num_bytes = num_bytes});
    end += num_bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes || slots_.size() > kMaxTensors) {
    fail(ErrorKind::input,
         "{}: {} tensors with a header of {} bytes, at most {} and {} are read back", path.string(),
         slots_.size(), header.size(), kMaxTensors, kMaxHeaderBytes);
  }
  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  for (Slot& slot : slots_) slot.offset += length.size() + header.size();
  file_.write_at(0, length);
  file_.write_at(length.size(), std::as_bytes(std::span(header)));
}

SafetensorsWriter::Slot& SafetensorsWriter::slot(std::string_view name) {
  const auto found = index_.find(name);
  DSMOE_CHECK(found != index_.end(), "tensor {} was not declared for {}", in_quotes(name),
              file_.target().string());
  return slots_[found->second];
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  Slot& target = slot(name);
  DSMOE_CHECK(bytes.size() <= target.num_bytes - target.written,
              "{} bytes for tensor {}, which has {} of its {} bytes already", bytes.size(), name,
              target.written, target.num_bytes);
  file_.write_at(target.offset + target.written, bytes);
  target.written += bytes.size();
}

void SafetensorsWriter::write(std::string_view name, const tensor::TensorView& view) {
  const TensorSpec& spec = slot(name).spec;
  DSMOE_CHECK(view.device == tensor::Device::cpu, "tensor {} is not in host memory", name);
  DSMOE_CHECK(view.dtype == spec.dtype && view.shape == spec.shape,
              "tensor {} was declared {} {}, got {} {}", name, tensor::name_of(spec.dtype),
              to_string(spec.shape), tensor::name_of(view.dtype), to_string(view.shape));
  write(name, std::span(static_cast<const std::byte*>(view.data), view.num_bytes()));
}

const std::filesystem::path& SafetensorsWriter::share(
    FunctionRef<bool(const std::string&)> is_theirs) {
  uint64_t end = 0;
  for (Slot& slot : slots_) {
    if (is_theirs(slot.spec.name)) slot.written = slot.num_bytes;
    end = std::max(end, slot.offset + slot.num_bytes);
  }
  return file_.share(end);
}

void SafetensorsWriter::finish() {
  for (const Slot& slot : slots_) {
    DSMOE_CHECK(slot.written == slot.num_bytes, "tensor {} has {} of its {} bytes", slot.spec.name,
                slot.written, slot.num_bytes);
  }
  file_.commit();
}

}  // namespace dsmoe::store
