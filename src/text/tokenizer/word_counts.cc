// Blocks are cut where GPT-2's pattern always ends a word, so cutting changes nothing.
#include "text/tokenizer/word_counts.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/unicode.h"

namespace dsmoe::text {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::size_t kReadAtOnce = std::size_t{64} << 20;
// Longer words are counted in pieces: merging takes some twenty bytes for each of a word's, and a
// few bytes of a compressed file can stand for a word of any length.
constexpr std::size_t kMaxWordBytes = 4096;

// Behind a visible ASCII character and before a space or line feed: no word spans such a place, and
// none of the pattern's look-ahead reaches across it.
bool ends_word(std::string_view text, std::size_t at) {
  const char before = text[at - 1];
  return before > ' ' && before < 0x7F && (text[at] == ' ' || text[at] == '\n');
}

std::vector<std::string_view> cut_blocks(std::string_view text) {
  std::vector<std::string_view> blocks;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = std::min(begin + kBlock, text.size());
    while (end < text.size() && !ends_word(text, end)) ++end;
    blocks.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return blocks;
}

// How much of a read piece can be counted now; the rest waits for what follows it.
std::size_t last_cut(std::string_view text) {
  for (std::size_t at = text.size() - 1; at > text.size() / 2; --at) {
    if (ends_word(text, at)) return at;
  }
  return text.size() - incomplete_tail(text);
}

template <class Map>
class CountSink final : public PieceSink {
 public:
  explicit CountSink(Map& counts) : counts_(counts) {}
  void piece(std::string_view text) override {
    while (text.size() > kMaxWordBytes) {
      std::size_t cut = kMaxWordBytes;
      while ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
      count(text.substr(0, cut));
      text.remove_prefix(cut);
    }
    count(text);
  }

 private:
  void count(std::string_view word) {
    key_.assign(word);
    ++counts_[key_];
  }

  Map& counts_;
  std::string key_;
};

std::vector<PreTokenizerStep> gpt2_steps() {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(SplitStep{.pattern = Pattern::from_regex(kGpt2Pattern, "GPT-2 pattern")});
  return steps;
}

}  // namespace

WordCounts::WordCounts(const std::vector<std::string>& delimiters) : pre_tokenizer_(gpt2_steps()) {
  std::int32_t id = 0;
  for (const std::string& delimiter : delimiters) {
    delimiters_.add({.id = id++, .content = delimiter}, delimiter);
  }
}

void WordCounts::count_block(std::string_view block, PreTokenizer::Scratch& scratch,
                             Counts& counts) const {
  CountSink<Counts> sink(counts);
  std::vector<Section> sections;
  for (std::size_t at = 0; at < block.size();) {
    const std::size_t end = valid_utf8_end(block, at);
    const std::string_view valid = block.substr(at, end - at);
    scratch.regex.has_recent = has_recent(valid);
    delimiters_.split(valid, ParseSpecial::yes, scratch.regex, sections);
    for (const Section& section : sections) {
      if (section.id != Section::kPlainText) continue;
      const std::string_view text =
          valid.substr(section.span.begin, section.span.end - section.span.begin);
      pre_tokenizer_.run(text, start_of_text(text), scratch, sink);
    }
    if (end == block.size()) break;
    at = end + ill_formed_length(block, end);
  }
}

void WordCounts::add_text(std::string_view text, ThreadPool& pool, std::size_t num_inserted) {
  num_bytes_ += text.size() - num_inserted;
  const std::vector<std::string_view> blocks = cut_blocks(text);
  std::vector<Counts> per_thread(static_cast<std::size_t>(pool.num_threads()));
  std::atomic<std::size_t> next_block = 0;
  pool.run([&](int thread_idx, int) {
    PreTokenizer::Scratch scratch;
    Counts& counts = per_thread[static_cast<std::size_t>(thread_idx)];
    for (std::size_t i = next_block++; i < blocks.size(); i = next_block++) {
      count_block(blocks[i], scratch, counts);
    }
  });
  for (const Counts& counts : per_thread) {
    for (const auto& [word, count] : counts) counts_[word] += count;
  }
}

void WordCounts::add_stream(FunctionRef<std::size_t(std::span<char>)> read, ThreadPool& pool) {
  std::string buffer;
  for (bool ended = false; !ended;) {
    std::size_t filled = buffer.size();
    const std::size_t wanted = filled + kReadAtOnce;
    buffer.resize(wanted);
    while (filled < wanted && !ended) {
      const std::size_t count = read(std::span(buffer).subspan(filled));
      filled += count;
      ended = count == 0;
    }
    buffer.resize(filled);
    if (ended) break;
    const std::size_t cut = last_cut(buffer);
    add_text(std::string_view(buffer).substr(0, cut), pool);
    buffer.erase(0, cut);
  }
  add_text(buffer, pool);
}

void WordCounts::add_file(const std::string& path, ThreadPool& pool) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_errno(fmt::format("cannot open {}", path));
  const auto read = [&](std::span<char> out) {
    file.read(out.data(), static_cast<std::streamsize>(out.size()));
    if (file.bad()) fail_errno(fmt::format("cannot read {}", path));
    return static_cast<std::size_t>(file.gcount());
  };
  add_stream(read, pool);
}

std::vector<std::pair<std::string, std::int64_t>> WordCounts::sorted() const {
  std::vector<std::pair<std::string, std::int64_t>> words(counts_.begin(), counts_.end());
  std::sort(words.begin(), words.end());
  return words;
}

}  // namespace dsmoe::text
