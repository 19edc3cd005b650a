#include "base/sha256.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/cpu_features.h"

namespace dsmoe {
namespace {

// The examples of FIPS 180-4 and lengths around a block's border, from another implementation.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(55, 'a')),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256(std::string(63, 'a')),
            "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(sha256(std::string(64, 'a')),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PartsDoNotMatter) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (const std::size_t cut : {0, 1, 63, 64, 65, 128, 200}) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    hash.update(std::string_view(text).substr(cut));
    EXPECT_EQ(hash.finish(), sha256(text)) << cut;
  }
}

TEST(Sha256, InstructionsComputeTheSame) {
  if (!cpu_features().sha) GTEST_SKIP() << "this CPU has no SHA instructions";
  std::vector<std::byte> blocks(64 * 9);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = std::byte(i * i * 31 >> 3);
  for (std::size_t count = 0; count <= 9; ++count) {
    std::array<uint32_t, 8> plain{1, 2, 3, 0xffffffffu, 5, 6, 0x80000000u, 8};
    std::array<uint32_t, 8> quick = plain;
    const std::array<uint32_t, 8> start = plain;
    sha256_compress(plain, blocks.data(), count);
    sha256_compress_by_instructions(quick, blocks.data(), count);
    EXPECT_EQ(plain, quick) << count;
    EXPECT_EQ(plain == start, count == 0);
  }
}

}  // namespace
}  // namespace dsmoe
