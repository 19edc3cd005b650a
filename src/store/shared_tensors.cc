// Places come from the headers, which the owner of the files wrote first.
#include "store/shared_tensors.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace dsmoe::store {

namespace fs = std::filesystem;

SharedTensors::SharedTensors(std::span<const fs::path> paths) : paths_(paths.begin(), paths.end()) {
  descriptors_.reserve(paths_.size());  // so that none is lost where something throws
  for (const fs::path& path : paths_) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const TensorEntry& entry : file.tensors())
      places_[entry.name] = {.file = descriptors_.size(), .entry = entry};
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0) fail_errno("cannot open " + path.string());
    descriptors_.push_back(descriptor);
  }
}

SharedTensors::~SharedTensors() {
  for (const int descriptor : descriptors_) ::close(descriptor);
}

void SharedTensors::write(std::string_view name, uint64_t offset,
                          std::span<const std::byte> bytes) {
  const auto found = places_.find(name);
  DSMOE_CHECK(found != places_.end(), "tensor {} is in none of the shared files", name);
  const auto& [file, entry] = found->second;
  DSMOE_CHECK(offset <= entry.num_bytes && bytes.size() <= entry.num_bytes - offset,
              "{} bytes from {} on of tensor {}, which has {}", bytes.size(), offset, name,
              entry.num_bytes);
  uint64_t at = entry.offset + offset;
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(descriptors_[file], bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_errno("cannot write " + paths_[file].string());
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    at += static_cast<uint64_t>(count);
    written_ += static_cast<uint64_t>(count);
  }
}

uint64_t SharedTensors::finish() {
  for (std::size_t i = 0; i < descriptors_.size(); ++i) {
    if (::fsync(descriptors_[i]) != 0) fail_errno("cannot fsync " + paths_[i].string());
  }
  return written_;
}

}  // namespace dsmoe::store
