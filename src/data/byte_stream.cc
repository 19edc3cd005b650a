// read(2), zstd's streaming decoder, and the magic numbers of formats that are not text.
#include "data/byte_stream.h"

#include <unistd.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace dsmoe::data {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd"sv;

struct KnownFormat {
  std::string_view magic, name, advice;
};
constexpr std::array kNotText = {
    KnownFormat{"\x1f\x8b"sv, "gzip", "decompress it, or recompress it with zstd"},
    KnownFormat{"\xfd\x37zXZ"sv, "xz", "decompress it, or recompress it with zstd"},
    KnownFormat{"BZh"sv, "bzip2", "decompress it, or recompress it with zstd"},
    KnownFormat{"PK\x03\x04"sv, "zip", "unpack it"},
    KnownFormat{"PAR1"sv, "Parquet", "export it as JSONL"},
    KnownFormat{"\xff\xfe"sv, "UTF-16", "convert it to UTF-8"},
    KnownFormat{"\xfe\xff"sv, "UTF-16", "convert it to UTF-8"},
};

class ZstdStream : public ByteStream {
 public:
  ZstdStream(std::unique_ptr<ByteStream> compressed, std::string name)
      : compressed_(std::move(compressed)),
        name_(std::move(name)),
        decoder_(ZSTD_createDStream()),
        buffer_(ZSTD_DStreamInSize()) {
    if (!decoder_) fail(ErrorKind::resource, "{}: no memory for a zstd decoder", name_);
  }

  size_t read(std::span<char> out) override {
    if (out.empty()) return 0;
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0) {
      if (input_.pos == input_.size && !ended_) refill();
      if (input_.pos == input_.size && ended_ && finished_frame_) return 0;
      const size_t taken_before = input_.pos;
      const size_t result = ZSTD_decompressStream(decoder_.get(), &output, &input_);
      if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
        fail(ErrorKind::input,
             "{}: compressed with a window above 128 MiB (zstd --long), which would take as much "
             "memory; recompress it without --long",
             name_);
      }
      if (ZSTD_isError(result)) {
        fail(ErrorKind::input, "{}: zstd data is damaged near compressed byte {}: {}", name_,
             buffer_start_ + input_.pos, ZSTD_getErrorName(result));
      }
      finished_frame_ = result == 0;
      // With the file at its end and nothing moved, the frame can never be finished.
      if (ended_ && output.pos == 0 && input_.pos == taken_before && !finished_frame_) {
        fail(ErrorKind::input,
             "{}: the zstd file is truncated: it ends inside a frame after {} bytes", name_,
             buffer_start_ + input_.size);
      }
    }
    return output.pos;
  }

  uint64_t file_bytes_read() const override { return compressed_->file_bytes_read(); }

 private:
  struct FreeDecoder {
    void operator()(ZSTD_DStream* decoder) const { ZSTD_freeDStream(decoder); }
  };

  void refill() {
    buffer_start_ += input_.size;
    const size_t count = compressed_->read(buffer_);
    if (count == 0) ended_ = true;
    input_ = {buffer_.data(), count, 0};
  }

  std::unique_ptr<ByteStream> compressed_;
  std::string name_;
  std::unique_ptr<ZSTD_DStream, FreeDecoder> decoder_;
  std::vector<char> buffer_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  uint64_t buffer_start_ = 0;    // offset of buffer_[0] in the compressed file
  bool ended_ = false;           // the compressed file has no more bytes
  bool finished_frame_ = false;  // false at the start: an empty file is not a zstd file
};

// What the first bytes of the file are, from a descriptor of its own.
std::string first_bytes(const std::filesystem::path& path) {
  FileStream file(path);
  std::string bytes(8, '\0');
  bytes.resize(file.read(bytes));
  return bytes;
}

}  // namespace

size_t MemoryStream::read(std::span<char> out) {
  const size_t count = std::min(out.size(), bytes_.size() - position_);
  std::copy_n(bytes_.data() + position_, count, out.data());
  position_ += count;
  return count;
}

FileStream::FileStream(const std::filesystem::path& path) : name_(path.string()) {
  const OpenFile file = open_regular_file(path);
  descriptor_ = file.descriptor;
  file_bytes_ = file.size;
}

FileStream::~FileStream() { ::close(descriptor_); }

size_t FileStream::read(std::span<char> out) {
  for (;;) {
    const ssize_t count = ::read(descriptor_, out.data(), out.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_errno("cannot read " + name_);
    if (count == 0 && !out.empty() && position_ < file_bytes_) {
      fail_shortened(name_, position_, file_bytes_);
    }
    position_ += static_cast<uint64_t>(count);
    return static_cast<size_t>(count);
  }
}

std::unique_ptr<ByteStream> zstd_stream(std::unique_ptr<ByteStream> compressed, std::string name) {
  return std::make_unique<ZstdStream>(std::move(compressed), std::move(name));
}

std::unique_ptr<ByteStream> open_text_bytes(const std::filesystem::path& path) {
  const std::string start = first_bytes(path);
  auto file = std::make_unique<FileStream>(path);
  if (path.extension() == ".zst" || start.starts_with(kZstdMagic)) {
    return zstd_stream(std::move(file), path.string());
  }
  for (const KnownFormat& format : kNotText) {
    if (start.starts_with(format.magic)) {
      fail(ErrorKind::input, "{} looks like {}; expected UTF-8 text, JSONL, or either as .zst: {}",
           path.string(), format.name, format.advice);
    }
  }
  return file;
}

}  // namespace dsmoe::data
