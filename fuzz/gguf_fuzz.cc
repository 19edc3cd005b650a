// A GGUF file of any bytes is refused by Error(input), or its tensors tile its data; what it says
// of a configuration and of a tokenizer is read or refused too.
#include "store/gguf/gguf_file.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/config.h"
#include "store/gguf/gguf_tensors.h"
#include "text/text_files.h"
#include "text/tokenizer/tokenizer.h"

namespace {

namespace gguf = dsmoe::store::gguf;

// Whether f ends, in one way or the other.
template <class F>
bool is_refused(F&& f) {
  try {
    f();
    return false;
  } catch (const dsmoe::Error& e) {
    if (e.kind() != dsmoe::ErrorKind::input) std::abort();
    return true;
  }
}

void check_header(std::span<const std::byte> file) {
  const gguf::Header header = gguf::parse(file, "fuzz");
  for (const gguf::TensorEntry& entry : header.tensors) {
    if (entry.offset > file.size() || entry.num_bytes > file.size() - entry.offset) std::abort();
    const auto bytes = gguf::num_bytes(entry.type, entry.shape.num_elements());
    if (static_cast<uint64_t>(bytes) != entry.num_bytes) std::abort();
  }
}

// What commands do with a file, through one in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> bytes)
      : path_("/dev/shm/dsmoe-gguf-fuzz-" + std::to_string(::getpid())) {
    std::FILE* out = std::fopen(path_.c_str(), "wb");
    if (out == nullptr) std::abort();
    std::fwrite(bytes.data(), 1, bytes.size(), out);
    std::fclose(out);
  }
  ~MemoryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (is_refused([&] { check_header(bytes); })) return 0;
  const MemoryFile file(bytes);
  is_refused([&] { dsmoe::model::read_config(file.path()); });
  is_refused([&] {
    if (dsmoe::text::has_tokenizer(file.path())) {
      dsmoe::text::Tokenizer::from_file(file.path()).encode("Some text.");
    }
  });
  const gguf::File opened = gguf::File::open(file.path());
  for (const gguf::TensorEntry& entry : opened.tensors()) {
    if (entry.num_bytes > 1 << 16) continue;
    std::vector<float> numbers(static_cast<std::size_t>(entry.shape.num_elements()));
    gguf::dequantise(entry.type, opened.bytes(entry), numbers);
  }
  return 0;
}
