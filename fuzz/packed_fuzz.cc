// Headers of packed images: refused or read, nothing else.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/sha256.h"
#include "store/packed_image.h"

// The hash would keep a fuzzer out of the header, so that it is made right: the input is the
// header, and what follows it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t split = input.find('\0');
  const std::string_view header = input.substr(0, split);
  const uint64_t length = header.size();
  std::string file = "dsmoepk\n";
  file.append(reinterpret_cast<const char*>(&length), sizeof length);
  file += dsmoe::sha256(header);
  file += header;
  if (split != std::string_view::npos) file += input.substr(split);
  for (const std::string_view bytes : {std::string_view(file), input}) {
    try {
      dsmoe::store::parse_packed_header(std::as_bytes(std::span(bytes)), "input");
    } catch (const dsmoe::Error& error) {
      if (error.kind() != dsmoe::ErrorKind::input) throw;
    }
  }
  return 0;
}
