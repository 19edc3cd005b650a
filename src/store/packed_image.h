// A packed image: the weights of a model as a backend computes with them, in one file that is
// mapped instead of packed again. docs/formats.md describes the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/thread_pool.h"

namespace dsmoe::store {

// A file the weights came from; a change of content is taken to change size or time.
struct SourceFile {
  std::string name;  // within the model folder
  uint64_t num_bytes = 0;
  int64_t modified_ns = 0;
  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

// Throws Error(io) when the file is not there.
SourceFile describe_source(const std::filesystem::path& file);

// What an image was made from and how: equal identities, equal bytes.
struct PackedIdentity {
  std::string packing;        // layout and type, with the version of the packing
  std::string config_sha256;  // of the text of config.json
  std::vector<SourceFile> sources;
};

// What the header of an image says.
struct PackedHeader {
  PackedIdentity identity;
  std::vector<uint64_t> block_bytes;
  uint64_t checksums_offset = 0;  // one number of 64 bits per chunk of the data
  uint64_t data_offset = 0;
  uint64_t data_bytes = 0;
};

// Throws Error(input) that starts with `what` when the bytes of a file are not a whole image,
// checksums left aside.
PackedHeader parse_packed_header(std::span<const std::byte> file, std::string_view what);

class PackedImage {
 public:
  // Maps the file and checks everything but the blocks. Throws Error(io) if it cannot be opened,
  // Error(input) that starts with its path if it is not a whole image.
  static PackedImage open(const std::filesystem::path& path);

  const PackedHeader& header() const { return header_; }

  // Empty when the image was made from and for `identity`; else what differs, in words.
  std::string difference(const PackedIdentity& identity) const;

  // Blocks of memory in the order they were given to write_packed_image(), each at a page; valid as
  // long as the image.
  std::vector<std::span<const std::byte>> blocks() const;

  // Brings all of it into memory, the threads side by side in the order of the file, and compares
  // it with its checksums. Throws Error(input) that says where it is damaged.
  void load(ThreadPool& pool) const;

 private:
  PackedImage(MappedFile file, PackedHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  void check_chunk(uint64_t idx) const;

  MappedFile file_;
  PackedHeader header_;
};

// Writes the file whole or not at all. Throws Error(io).
void write_packed_image(const std::filesystem::path& path, const PackedIdentity& identity,
                        std::span<const std::span<const std::byte>> blocks);

}  // namespace dsmoe::store
