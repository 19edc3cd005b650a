// Tensors of a mapped file; blocks are taken out for one tensor, or a part of one, at a time.
#include "store/gguf/gguf_tensors.h"

#include <algorithm>

#include "base/error.h"
#include "store/tensor_differences.h"

namespace dsmoe::store::gguf {
namespace {

// What numbers of this type are in memory.
tensor::DType dtype_of(TensorType type) {
  if (type == TensorType::F16) return tensor::DType::F16;
  return type == TensorType::BF16 ? tensor::DType::BF16 : tensor::DType::F32;
}

}  // namespace

void check_tensors(const File& file, std::span<const tensor::TensorSpec> expected,
                   FunctionRef<bool(const TensorEntry&)> is_passed_over) {
  TensorDifferences differences;
  std::vector<std::string_view> known;
  for (const tensor::TensorSpec& spec : expected) {
    known.push_back(spec.name);
    const TensorEntry* entry = file.find_tensor(spec.name);
    if (entry == nullptr) {
      differences.missing(spec);
    } else if (entry->shape != spec.shape) {
      differences.other(spec.name, to_string(spec.shape), to_string(entry->shape));
    }
  }
  std::sort(known.begin(), known.end());
  for (const TensorEntry& entry : file.tensors()) {
    if (std::binary_search(known.begin(), known.end(), entry.name) || is_passed_over(entry)) {
      continue;
    }
    differences.extra(entry.name, entry.shape);
  }
  differences.throw_if_any(file.what());
}

bool is_zero(const File& file, const TensorEntry& entry) {
  return std::ranges::all_of(file.bytes(entry), [](std::byte b) { return b == std::byte{0}; });
}

const TensorEntry& GgufTensors::entry(const std::string& name) const {
  const TensorEntry* found = file_.find_tensor(name);
  if (found == nullptr) fail(ErrorKind::input, "{}: has no tensor {}", file_.what(), name);
  return *found;
}

tensor::TensorView GgufTensors::tensor(const std::string& name) {
  const TensorEntry& found = entry(name);
  tensor::TensorView view = part(name, 0, found.shape.num_elements());
  view.shape = found.shape;
  return view;
}

tensor::TensorView GgufTensors::part(const std::string& name, int64_t first, int64_t count) {
  const TensorEntry& found = entry(name);
  const std::span<const std::byte> bytes = file_.bytes(found);
  const BlockSize block = block_size(found.type);
  DSMOE_CHECK(first % block.elements == 0 && count % block.elements == 0,
              "numbers [{}, +{}) of {} in blocks of {}", first, count, name, block.elements);
  tensor::TensorView view{.dtype = dtype_of(found.type), .shape = {count}};
  if (!is_quantised(found.type)) {
    // Mapped read-only: consumers of a source only read.
    view.data = const_cast<std::byte*>(bytes.data() + num_bytes(found.type, first));
    return view;
  }
  if (whole_ == name) {
    view.data = numbers_.data() + first;
    return view;
  }
  numbers_.resize(static_cast<std::size_t>(count));
  whole_ = count == found.shape.num_elements() ? name : "";
  constexpr int64_t kBlocksAtATime = 256;
  parallel_for(pool_, count / block.elements, kBlocksAtATime, [&](int64_t begin, int64_t end) {
    const auto from = static_cast<std::size_t>((first / block.elements + begin) * block.bytes);
    const auto to = static_cast<std::size_t>((first / block.elements + end) * block.bytes);
    const std::span<float> out(numbers_.data() + begin * block.elements,
                               static_cast<std::size_t>((end - begin) * block.elements));
    dequantise(found.type, bytes.subspan(from, to - from), out);
  });
  view.data = numbers_.data();
  return view;
}

void GgufTensors::release(const std::string& name) {
  file_.mapped().check_length();
  file_.mapped().release(file_.bytes(entry(name)));
}

void GgufTensors::release_part(const std::string& name, int64_t first, int64_t count) {
  const TensorEntry& found = entry(name);
  const BlockSize block = block_size(found.type);
  // Of a block that others use too, nothing.
  const int64_t begin = (first + block.elements - 1) / block.elements;
  const int64_t end = (first + count) / block.elements;
  if (begin >= end) return;
  file_.mapped().release(
      file_.bytes(found).subspan(static_cast<std::size_t>(begin * block.bytes),
                                 static_cast<std::size_t>((end - begin) * block.bytes)));
}

}  // namespace dsmoe::store::gguf
