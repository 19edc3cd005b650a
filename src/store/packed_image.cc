// Header, checksums, blocks: written in one go, mapped and compared on several threads.
#include "store/packed_image.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/utf8.h"

namespace dsmoe::store {
namespace {

namespace fs = std::filesystem;

// magic, length of the header, its SHA-256 in hexadecimal digits, the header
constexpr std::string_view kMagic = "dsmoepk\n";
constexpr int kVersion = 1;
constexpr std::size_t kHashBegin = 16, kHashBytes = 64, kHeaderBegin = kHashBegin + kHashBytes;
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxBlocks = 65536;
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 46;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kChunkBytes = uint64_t{4} << 20;  // of one checksum
constexpr uint64_t kChunksAhead = 16;                // that the disk is asked for

uint64_t aligned(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Eight chains, each a bijection in every word, so that one changed word always shows; no
// protection against somebody who wants to deceive, who could as well change the weights.
uint64_t checksum(std::span<const std::byte> bytes) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;  // odd
  std::array<uint64_t, 8> lanes{1, 2, 3, 4, 5, 6, 7, 8};
  std::size_t begin = 0;
  for (; begin + sizeof lanes <= bytes.size(); begin += sizeof lanes) {
    std::array<uint64_t, 8> words{};
    std::memcpy(words.data(), bytes.data() + begin, sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = (lanes[i] ^ words[i]) * kFactor;
  }
  uint64_t sum = bytes.size();
  for (; begin < bytes.size(); ++begin) {
    sum = (sum ^ std::to_integer<uint64_t>(bytes[begin])) * kFactor;
  }
  for (const uint64_t lane : lanes) sum = (std::rotl(sum, 29) ^ lane) * kFactor;
  return sum;
}

// Blocks one behind the other, each at a page.
uint64_t data_bytes_of(std::span<const uint64_t> block_bytes) {
  uint64_t end = 0;
  for (const uint64_t bytes : block_bytes) end = aligned(end, kPage) + bytes;
  return end;
}

uint64_t num_chunks(uint64_t data_bytes) { return (data_bytes + kChunkBytes - 1) / kChunkBytes; }

// Everything but the identity follows from the sizes.
void lay_out(PackedHeader& header, uint64_t header_end) {
  header.data_bytes = data_bytes_of(header.block_bytes);
  header.checksums_offset = aligned(header_end, 8);
  header.data_offset = aligned(header.checksums_offset + 8 * num_chunks(header.data_bytes), kPage);
}

std::string header_text(const PackedHeader& header) {
  Json sources = Json::array();
  for (const SourceFile& source : header.identity.sources) {
    sources.push_back(
        {{"name", source.name}, {"bytes", source.num_bytes}, {"modified_ns", source.modified_ns}});
  }
  return Json{{"version", kVersion},
              {"packing", header.identity.packing},
              {"config_sha256", header.identity.config_sha256},
              {"sources", sources},
              {"blocks", header.block_bytes}}
      .dump();
}

class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string_view what)
      : what_(what), json_(parse_json(text, what, {.max_depth = 4})) {
    if (!json_.is_object()) refuse("the header is not an object");
  }

  PackedHeader read() {
    if (const Json& version = field(json_, "version"); version != kVersion) {
      refuse(fmt::format("version {}, this program reads {}", version.dump(), kVersion));
    }
    PackedHeader header;
    header.identity.packing = text(json_, "packing");
    header.identity.config_sha256 = text(json_, "config_sha256");
    for (const Json& source : list(json_, "sources")) {
      if (!source.is_object()) refuse("a source is not an object");
      header.identity.sources.push_back({.name = text(source, "name"),
                                         .num_bytes = number<uint64_t>(source, "bytes"),
                                         .modified_ns = number<int64_t>(source, "modified_ns")});
    }
    const Json& blocks = list(json_, "blocks");
    if (blocks.size() > kMaxBlocks) refuse("too many blocks");
    uint64_t total = 0;
    for (const Json& bytes : blocks) {
      if (!bytes.is_number_unsigned() || bytes.get<uint64_t>() > kMaxBlockBytes ||
          (total += bytes.get<uint64_t>()) > kMaxBlockBytes) {
        refuse("the sizes of the blocks are no sizes");
      }
      header.block_bytes.push_back(bytes.get<uint64_t>());
    }
    return header;
  }

 private:
  [[noreturn]] void refuse(std::string_view fault) const {
    fail(ErrorKind::input, "{}: not a packed image: {}", what_, fault);
  }
  const Json& field(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) refuse(fmt::format("the header has no \"{}\"", key));
    return *found;
  }
  std::string text(const Json& object, const char* key) const {
    const Json& value = field(object, key);
    if (!value.is_string()) refuse(fmt::format("\"{}\" is not a string", key));
    return value.get<std::string>();
  }
  const Json& list(const Json& object, const char* key) const {
    const Json& value = field(object, key);
    if (!value.is_array()) refuse(fmt::format("\"{}\" is not a list", key));
    return value;
  }
  template <class T>
  T number(const Json& object, const char* key) const {
    const Json& value = field(object, key);
    if (!value.is_number_integer()) refuse(fmt::format("\"{}\" is not a whole number", key));
    return value.get<T>();
  }

  std::string_view what_;
  Json json_;
};

// Blocks as one stream of bytes with zeros between them; a checksum after each chunk.
class DataWriter {
 public:
  DataWriter(AtomicFile& file, uint64_t offset) : file_(file), offset_(offset) {
    chunk_.reserve(kChunkBytes);
  }

  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t count = std::min<std::size_t>(bytes.size(), kChunkBytes - chunk_.size());
      chunk_.insert(chunk_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (chunk_.size() == kChunkBytes) flush();
    }
  }
  void align() {
    static constexpr std::array<std::byte, kPage> kZeros{};
    const uint64_t begin = written_ + chunk_.size();
    add(std::span(kZeros).first(aligned(begin, kPage) - begin));
  }
  void flush() {
    if (chunk_.empty()) return;
    file_.write_at(offset_ + written_, chunk_);
    checksums_.push_back(checksum(chunk_));
    written_ += chunk_.size();
    chunk_.clear();
  }
  std::span<const uint64_t> checksums() const { return checksums_; }

 private:
  AtomicFile& file_;
  uint64_t offset_;
  uint64_t written_ = 0;
  std::vector<std::byte> chunk_;
  std::vector<uint64_t> checksums_;
};

}  // namespace

SourceFile describe_source(const fs::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) fail_errno("cannot examine " + file.string());
  return {.name = file.filename().string(),
          .num_bytes = static_cast<uint64_t>(info.st_size),
          .modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

PackedHeader parse_packed_header(std::span<const std::byte> file, std::string_view what) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.size() < kHeaderBegin || !text.starts_with(kMagic)) {
    fail(ErrorKind::input, "{}: not a packed image: it does not begin like one", what);
  }
  uint64_t length = 0;
  std::memcpy(&length, text.data() + kMagic.size(), sizeof length);
  if (length > kMaxHeaderBytes || length > text.size() - kHeaderBegin) {
    fail(ErrorKind::input, "{}: damaged: the header claims {} bytes", what, length);
  }
  const std::string_view header_bytes = text.substr(kHeaderBegin, length);
  if (sha256(header_bytes) != text.substr(kHashBegin, kHashBytes)) {
    fail(ErrorKind::input, "{}: damaged: the header has another hash than it had", what);
  }
  PackedHeader header = HeaderReader(header_bytes, what).read();
  lay_out(header, kHeaderBegin + length);
  const uint64_t expected = header.data_offset + header.data_bytes;
  if (file.size() != expected) {
    fail(ErrorKind::input, "{}: damaged: {} bytes, {} were written", what, file.size(), expected);
  }
  return header;
}

PackedImage PackedImage::open(const fs::path& path) {
  MappedFile file(path);
  PackedHeader header = parse_packed_header(file.bytes(), path.string());
  return PackedImage(std::move(file), std::move(header));
}

std::string PackedImage::difference(const PackedIdentity& identity) const {
  const PackedIdentity& made = header_.identity;
  if (made.packing != identity.packing) {
    return fmt::format("it is packed as {}, wanted is {}", in_quotes(made.packing),
                       identity.packing);
  }
  if (made.config_sha256 != identity.config_sha256) return "config.json has changed since";
  if (made.sources.size() != identity.sources.size()) return "the model had other files";
  for (std::size_t i = 0; i < identity.sources.size(); ++i) {
    if (made.sources[i] == identity.sources[i]) continue;
    return fmt::format("{} has changed since", identity.sources[i].name);
  }
  return {};
}

std::vector<std::span<const std::byte>> PackedImage::blocks() const {
  std::vector<std::span<const std::byte>> blocks;
  uint64_t end = 0;
  for (const uint64_t bytes : header_.block_bytes) {
    const uint64_t begin = aligned(end, kPage);
    blocks.push_back(file_.bytes().subspan(header_.data_offset + begin, bytes));
    end = begin + bytes;
  }
  return blocks;
}

void PackedImage::check_chunk(uint64_t idx) const {
  const uint64_t begin = idx * kChunkBytes;
  const uint64_t count = std::min(kChunkBytes, header_.data_bytes - begin);
  const auto chunk = file_.bytes().subspan(header_.data_offset + begin, count);
  file_.populate(chunk);
  uint64_t expected = 0;
  std::memcpy(&expected, file_.bytes().data() + header_.checksums_offset + 8 * idx,
              sizeof expected);
  if (checksum(chunk) != expected) {
    fail(ErrorKind::input, "{}: damaged: the bytes from {} on are not those that were written",
         file_.path().string(), header_.data_offset + begin);
  }
}

void PackedImage::load(ThreadPool& pool) const {
  const uint64_t count = num_chunks(header_.data_bytes);
  const auto ask_for = [&](uint64_t idx) {
    if (idx < count) file_.read_ahead(header_.data_offset + idx * kChunkBytes, kChunkBytes);
  };
  for (uint64_t idx = 0; idx < kChunksAhead; ++idx) ask_for(idx);
  in_turns(pool, count, [&](std::size_t idx, int) {
    ask_for(idx + kChunksAhead);
    check_chunk(idx);
  });
}

void write_packed_image(const fs::path& path, const PackedIdentity& identity,
                        std::span<const std::span<const std::byte>> blocks) {
  PackedHeader header{.identity = identity};
  for (const auto& block : blocks) header.block_bytes.push_back(block.size());
  const std::string text = header_text(header);
  lay_out(header, kHeaderBegin + text.size());

  AtomicFile file(path);
  DataWriter data(file, header.data_offset);
  for (const auto& block : blocks) {
    data.align();
    data.add(block);
  }
  data.flush();
  const uint64_t length = text.size();
  std::string front(kMagic);
  front.append(reinterpret_cast<const char*>(&length), sizeof length);
  front += sha256(text) + text;
  file.write_at(0, std::as_bytes(std::span(front)));
  file.write_at(header.checksums_offset, std::as_bytes(data.checksums()));
  // A file of empty blocks alone still reaches to where its data would begin.
  if (header.data_bytes == 0) {
    const std::byte zero{};
    file.write_at(header.data_offset - 1, std::span(&zero, 1));
  }
  file.commit();
}

}  // namespace dsmoe::store
