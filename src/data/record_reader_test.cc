// Delimiters at every cut of the stream, positions, limits, and UTF-8.
#include "data/record_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/test_support.h"

namespace dsmoe::data {
namespace {

using testing::error_of;

// Gives at most `step` bytes per read.
class TricklingStream : public ByteStream {
 public:
  TricklingStream(std::string_view bytes, size_t step) : inner_(bytes), step_(step) {}
  size_t read(std::span<char> out) override {
    return inner_.read(out.first(std::min(step_, out.size())));
  }
  uint64_t file_bytes_read() const override { return inner_.file_bytes_read(); }

 private:
  MemoryStream inner_;
  size_t step_;
};

RecordReaderOptions options(std::vector<std::string> delimiters) {
  return {.name = "f.txt",
          .delimiters = std::move(delimiters),
          .max_record_bytes = 1000,
          .record_noun = "document",
          .too_long_advice = "cut it"};
}

std::vector<std::string> records(std::string_view text, const RecordReaderOptions& how,
                                 size_t step = 4096) {
  TricklingStream stream(text, step);
  RecordReader reader(stream, how);
  std::vector<std::string> all;
  for (std::string record; reader.next(record);) all.push_back(record);
  return all;
}

using Strings = std::vector<std::string>;

TEST(RecordReader, CutsAtDelimitersWhateverTheReads) {
  const std::string text = "one<|x|>two<|x|><|x|>three<|x|";
  for (size_t step = 1; step <= text.size(); ++step) {
    EXPECT_EQ(records(text, options({"<|x|>"}), step), (Strings{"one", "two", "", "three<|x|"}))
        << step;
  }
}

TEST(RecordReader, EarlierThenLongerDelimiterWins) {
  for (size_t step = 1; step < 12; ++step) {
    EXPECT_EQ(records("a--b---c-d", options({"--", "---"}), step), (Strings{"a", "b", "c-d"}))
        << step;
    EXPECT_EQ(records("a---b--c", options({"---", "--"}), step), (Strings{"a", "b", "c"})) << step;
    EXPECT_EQ(records("xEOSyENDz", options({"END", "EOS"}), step), (Strings{"x", "y", "z"}))
        << step;
  }
}

TEST(RecordReader, ALineBreakAfterADelimiterBelongsToIt) {
  RecordReaderOptions how = options({"|"});
  how.drop_line_break = true;
  for (size_t step = 1; step < 12; ++step) {
    EXPECT_EQ(records("a\n|\nb|\r\nc|\n\nd|\re", how, step),
              (Strings{"a\n", "b", "c", "\nd", "\re"}))
        << step;
  }
}

TEST(RecordReader, DropsAByteOrderMarkAtTheStartOnly) {
  for (size_t step = 1; step < 6; ++step) {
    EXPECT_EQ(records("\xEF\xBB\xBF"
                      "a|\xEF\xBB\xBF"
                      "b",
                      options({"|"}), step),
              (Strings{"a",
                       "\xEF\xBB\xBF"
                       "b"}));
  }
  EXPECT_EQ(records("\xEF\xBB", options({"|"})), Strings{"\xEF\xBB"});
  EXPECT_EQ(records("", options({"|"})), Strings{});
}

TEST(RecordReader, KnowsWhereRecordsBegin) {
  MemoryStream stream("a\nb|c|\nd\n\n|e");
  RecordReader reader(stream, options({"|"}));
  std::vector<TextPosition> places;
  for (std::string record; reader.next(record);) places.push_back(reader.position());
  EXPECT_EQ(places, (std::vector<TextPosition>{{0, 1}, {4, 2}, {6, 2}, {11, 5}}));
}

TEST(RecordReader, RefusesLongRecordsWithPlaceAndAdvice) {
  const std::string text = "short|\n" + std::string(1001, 'x') + "|";
  const std::string error = error_of([&] { records(text, options({"|"})); });
  EXPECT_NE(error.find("f.txt"), std::string::npos) << error;
  EXPECT_NE(error.find("limit of 1000 bytes; cut it"), std::string::npos) << error;
  EXPECT_EQ(records(std::string(1000, 'x') + "|", options({"|"})).size(), 1u);
  // The limit also stops a record that never ends.
  EXPECT_NE(error_of([&] { records(std::string(5000000, 'x'), options({"|"})); }), "");
}

TEST(RecordReader, RefusesAnEmptyDelimiter) {
  EXPECT_NE(error_of([&] { records("x", options({""})); }).find("empty separator"),
            std::string::npos);
}

TEST(Utf8, SaysLineAndOffset) {
  const std::string error = error_of([] { check_utf8("ab\ncd\xFF", {100, 7}, "f.txt"); });
  EXPECT_NE(error.find("f.txt: line 8, byte offset 105: byte 0xff"), std::string::npos) << error;
}

}  // namespace
}  // namespace dsmoe::data
