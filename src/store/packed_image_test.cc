#include "store/packed_image.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/failing_disk.h"
#include "base/scratch_folder.h"
#include "base/sha256.h"

namespace dsmoe::store {
namespace {

namespace fs = std::filesystem;

PackedIdentity identity() {
  return {.packing = "panels 1 BF16",
          .config_sha256 = std::string(64, 'a'),
          .sources = {{"model-1.safetensors", 123, -5}, {"model-2.safetensors", 456, 7}}};
}

std::vector<std::byte> block_of(std::size_t size, unsigned seed) {
  std::vector<std::byte> block(size);
  for (std::byte& byte : block) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return block;
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_all(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

class Packed : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::size_t size : {5000u, 0u, 1u, 9u << 20}) {
      contents_.push_back(block_of(size, static_cast<unsigned>(size)));
    }
    const std::vector<std::span<const std::byte>> blocks(contents_.begin(), contents_.end());
    write_packed_image(path_, identity(), blocks);
  }

  // What opening and loading the bytes says; empty: nothing wrong.
  std::string fault_of(const std::string& bytes) {
    const fs::path path = scratch_ / "changed";
    write_all(path, bytes);
    try {
      PackedImage::open(path).load(pool_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
      EXPECT_TRUE(std::string(error.what()).starts_with(path.string())) << error.what();
      return error.what();
    }
    return {};
  }

  // A header of our own with its right length and hash, and nothing after it.
  static std::string with_header(const std::string& header) {
    const uint64_t length = header.size();
    std::string bytes = "dsmoepk\n";
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    return bytes + sha256(header) + header;
  }

  void expect_fault(const std::string& bytes, const std::string& fault) {
    const std::string found = fault_of(bytes);
    EXPECT_NE(found.find(fault), std::string::npos) << "expected " << fault << ", found " << found;
  }

  ThreadPool pool_{2};
  ScratchFolder scratch_;
  fs::path path_ = scratch_ / "image";
  std::vector<std::vector<std::byte>> contents_;
};

TEST_F(Packed, GivesBackItsBlocks) {
  const PackedImage image = PackedImage::open(path_);
  image.load(pool_);
  EXPECT_EQ(image.difference(identity()), "");
  const auto blocks = image.blocks();
  ASSERT_EQ(blocks.size(), contents_.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ASSERT_EQ(blocks[i].size(), contents_[i].size());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks[i].data()) % 4096, 0u);
    EXPECT_TRUE(std::equal(blocks[i].begin(), blocks[i].end(), contents_[i].begin()));
  }
  EXPECT_EQ(fault_of(read_all(path_)), "");
}

TEST_F(Packed, HoldsNothingToo) {
  write_packed_image(scratch_ / "empty", identity(), {});
  const PackedImage image = PackedImage::open(scratch_ / "empty");
  image.load(pool_);
  EXPECT_TRUE(image.blocks().empty());
}

TEST_F(Packed, AnyFailedWriteLeavesTheOldOne) {
  const std::string good = read_all(path_);
  int failures = 0;
  for (bool was_reached = true; was_reached; ++failures) {
    FailingDisk::countdown = failures;
    FailingDisk::failure = ENOSPC;
    try {
      const std::vector<std::span<const std::byte>> blocks(contents_.begin(), contents_.end());
      write_packed_image(path_, identity(), blocks);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::io);
    }
    was_reached = FailingDisk::countdown < 0;
    FailingDisk::countdown = -1;
    EXPECT_EQ(read_all(path_), good);
    EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), fs::directory_iterator()), 1);
  }
  EXPECT_GT(failures, 6);
}

TEST_F(Packed, SaysWhatDiffers) {
  const PackedImage image = PackedImage::open(path_);
  const auto difference = [&](auto change) {
    PackedIdentity wanted = identity();
    change(wanted);
    return image.difference(wanted);
  };
  EXPECT_NE(difference([](auto& i) { i.packing = "panels 2 BF16"; }).find("panels 2"),
            std::string::npos);
  EXPECT_EQ(difference([](auto& i) { i.config_sha256[3] = 'b'; }), "config.json has changed since");
  EXPECT_EQ(difference([](auto& i) { i.sources[1].modified_ns++; }),
            "model-2.safetensors has changed since");
  EXPECT_EQ(difference([](auto& i) { i.sources[0].num_bytes++; }),
            "model-1.safetensors has changed since");
  EXPECT_EQ(difference([](auto& i) { i.sources.pop_back(); }), "the model had other files");
}

TEST_F(Packed, RefusesWhatIsCutOrChanged) {
  const std::string good = read_all(path_);
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{79}}) {
    expect_fault(good.substr(0, length), "not a packed image");
  }
  expect_fault(good.substr(0, 90), "the header claims");
  expect_fault(good.substr(0, good.size() - 1), "bytes");
  expect_fault(good + '\0', "were written");

  const uint64_t data_offset = PackedImage::open(path_).header().data_offset;
  const uint64_t checksums_offset = PackedImage::open(path_).header().checksums_offset;
  const auto flipped = [&](std::size_t at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    return bytes;
  };
  expect_fault(flipped(0), "not a packed image");
  expect_fault(flipped(14), "the header claims");
  expect_fault(flipped(20), "another hash");
  expect_fault(flipped(100), "another hash");
  for (const uint64_t at : {checksums_offset, data_offset, data_offset + 4097,
                            data_offset + (uint64_t{5} << 20), uint64_t{good.size()} - 1}) {
    expect_fault(flipped(at), "not those that were written");
  }
}

TEST_F(Packed, RefusesHeadersThatSayNonsense) {
  const std::string sizes_begin =
      R"({"version":1,"packing":"p","config_sha256":"c","sources":[],"blocks":)";
  expect_fault(with_header("{"), "changed");
  expect_fault(with_header("[]"), "not an object");
  expect_fault(with_header("{}"), "no \"version\"");
  expect_fault(with_header(R"({"version":2})"), "version 2");
  expect_fault(with_header(R"({"version":1,"packing":3})"), "\"packing\" is not a string");
  expect_fault(with_header(R"({"version":1,"packing":"p","config_sha256":"c","sources":{}})"),
               "\"sources\" is not a list");
  expect_fault(with_header(R"({"version":1,"packing":"p","config_sha256":"c","sources":[7]})"),
               "a source is not an object");
  expect_fault(with_header(R"({"version":1,"packing":"p","config_sha256":"c","sources":)"
                           R"([{"name":"n","bytes":1.5,"modified_ns":0}]})"),
               "not a whole number");
  for (const char* sizes :
       {"[-1]", "[1.5]", "[\"1\"]", "[18446744073709551615]", "[70368744177664,70368744177664]"}) {
    expect_fault(with_header(sizes_begin + sizes + "}"), "no sizes");
  }
  expect_fault(with_header(sizes_begin + "[70368744177664]}"), "were written");
  std::string many = "[0";
  for (int i = 0; i < 70000; ++i) many += ",0";
  expect_fault(with_header(sizes_begin + many + "]}"), "too many blocks");
}

}  // namespace
}  // namespace dsmoe::store
