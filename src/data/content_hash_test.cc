// XXH64: published values, and independence of how the bytes were cut.
#include "data/content_hash.h"

#include <gtest/gtest.h>

#include <string>

namespace dsmoe::data {
namespace {

TEST(ContentHash, HasThePublishedValues) {
  EXPECT_EQ(content_hash(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(content_hash("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(content_hash("abc"), 0x44BC2CF5AD770999u);
  EXPECT_EQ(content_hash("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);
}

TEST(ContentHash, DoesNotDependOnTheCuts) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 37);
  const uint64_t whole = content_hash(text);
  for (size_t step = 1; step <= 70; ++step) {
    ContentHash hash;
    for (size_t at = 0; at < text.size(); at += step)
      hash.update(std::string_view(text).substr(at, step));
    EXPECT_EQ(hash.value(), whole) << step;
  }
}

TEST(ContentHash, SeesEveryByteAndTheSeed) {
  std::string text(77, 'x');
  const uint64_t whole = content_hash(text);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_NE(content_hash(changed), whole) << i;
  }
  EXPECT_NE(content_hash(text, 1), whole);
  EXPECT_NE(content_hash(text + "x"), whole);
}

}  // namespace
}  // namespace dsmoe::data
