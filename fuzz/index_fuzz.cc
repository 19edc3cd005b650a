// parse_shard_index: any text is refused by Error(input), or names plain files only, each tensor
// once.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "store/hf_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsmoe::store::ShardIndex index;
  try {
    index = dsmoe::store::parse_shard_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const dsmoe::Error& e) {
    if (e.kind() != dsmoe::ErrorKind::input) std::abort();
    return 0;
  }
  for (const std::string& file : index.files) {
    if (file.find('/') != std::string::npos || file.front() == '.') std::abort();
  }
  for (std::size_t i = 0; i < index.weight_map.size(); ++i) {
    if (index.weight_map[i].file_idx >= index.files.size()) std::abort();
    if (i > 0 && index.weight_map[i - 1].tensor >= index.weight_map[i].tensor) std::abort();
  }
  return 0;
}
