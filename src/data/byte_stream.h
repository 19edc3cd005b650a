// Bytes from front to back: a file, a string, or what either holds once zstd is taken off.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace dsmoe::data {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out` as far as it can, at least one byte; 0 only at the end. Throws Error.
  virtual size_t read(std::span<char> out) = 0;
  // Bytes taken from the underlying file so far: for progress.
  virtual uint64_t file_bytes_read() const = 0;
};

// Borrows the bytes.
class MemoryStream : public ByteStream {
 public:
  explicit MemoryStream(std::string_view bytes) : bytes_(bytes) {}
  size_t read(std::span<char> out) override;
  uint64_t file_bytes_read() const override { return position_; }

 private:
  std::string_view bytes_;
  size_t position_ = 0;
};

// Throws Error(io) if it cannot be opened, Error(input) if it is no regular file: a corpus is read
// twice (once for its hash), which a pipe cannot be.
class FileStream : public ByteStream {
 public:
  explicit FileStream(const std::filesystem::path& path);
  ~FileStream() override;
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;
  size_t read(std::span<char> out) override;
  uint64_t file_bytes_read() const override { return position_; }
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  std::string name_;
  int descriptor_ = -1;
  uint64_t position_ = 0, file_bytes_ = 0;
};

// Decompresses any number of zstd frames. Memory is bounded by zstd's default window limit (128
// MiB). A damaged or truncated frame is Error(input) with `name` and the compressed offset.
std::unique_ptr<ByteStream> zstd_stream(std::unique_ptr<ByteStream> compressed, std::string name);

// The text of a file. It is taken for zstd when its name ends in ".zst" or it begins with the magic
// number of zstd (no UTF-8 text can); gzip, xz, bzip2, zip, Parquet and UTF-16 are refused by name.
std::unique_ptr<ByteStream> open_text_bytes(const std::filesystem::path& path);

}  // namespace dsmoe::data
