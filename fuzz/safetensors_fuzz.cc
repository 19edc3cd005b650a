// parse_safetensors: any bytes are refused by Error(input), or are a file whose tensors tile its
// data.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "base/error.h"
#include "store/safetensors.h"

namespace {

void check(std::span<const std::byte> file) {
  dsmoe::store::SafetensorsHeader header;
  try {
    header = dsmoe::store::parse_safetensors(file, "fuzz");
  } catch (const dsmoe::Error& e) {
    if (e.kind() != dsmoe::ErrorKind::input) std::abort();
    return;
  }
  uint64_t total = 0;
  for (const auto& entry : header.tensors) {
    if (entry.offset > file.size() || entry.num_bytes > file.size() - entry.offset) std::abort();
    if (dsmoe::store::num_bytes_of({entry.name, entry.dtype, entry.shape}) != entry.num_bytes)
      std::abort();
    total += entry.num_bytes;
  }
  if (total > file.size() - 8) std::abort();
}

}  // namespace

// An odd first byte: the rest is the file. An even one: the rest is a header, and first byte / 2
// bytes of data follow, so that mutations need not keep the length right.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> rest = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] % 2 == 1) {
    check(rest);
    return 0;
  }
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{size - 1} >> (8 * i));
  file.append(reinterpret_cast<const char*>(rest.data()), rest.size());
  file.append(data[0] / 2, '\1');
  check(std::as_bytes(std::span(file)));
  return 0;
}
