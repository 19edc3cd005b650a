// Merge the most frequent pair, give it the next free id, repeat.
#include "text/tokenizer/bpe_train.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer/bpe_pairs.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace dsmoe::text {
namespace {

constexpr std::int32_t kNumBytes = 256;
constexpr std::int64_t kReportEvery = 256;

void check_special(const SpecialToken& token, std::int32_t vocab_size) {
  if (token.content.empty() || !is_valid_utf8(token.content)) {
    fail(ErrorKind::usage, "special token {} needs text that is valid UTF-8", token.id);
  }
  // Both would be one key of the vocabulary in tokenizer.json.
  if (const auto bytes = from_byte_symbols(token.content); bytes && bytes->size() == 1) {
    fail(ErrorKind::usage,
         "special token {} cannot be \"{}\", which stands for one of the 256 bytes in a "
         "tokenizer.json; give it a longer text",
         token.id, token.content);
  }
  if (token.id < 0 || token.id >= vocab_size) {
    fail(ErrorKind::usage, "special token \"{}\" has id {}; ids of this vocabulary are 0 to {}",
         token.content, token.id, vocab_size - 1);
  }
}

// Ids that are free for bytes and merges, ascending.
std::vector<std::int32_t> free_ids(const BpeTrainOptions& options) {
  std::set<std::int32_t> taken;
  for (const SpecialToken& token : options.special.distinct()) taken.insert(token.id);
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < options.vocab_size; ++id) {
    if (taken.count(id) == 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace

std::vector<SpecialToken> SpecialTokens::distinct() const {
  std::map<std::int32_t, SpecialToken> by_id;
  for (const auto* token : {&bos, &eos, &pad}) {
    if (*token) by_id.emplace((*token)->id, **token);
  }
  std::vector<SpecialToken> tokens;
  for (const auto& [id, token] : by_id) tokens.push_back(token);
  return tokens;
}

std::vector<std::string> SpecialTokens::contents() const {
  std::vector<std::string> out;
  for (const SpecialToken& token : distinct()) out.push_back(token.content);
  return out;
}

void check_train_options(const BpeTrainOptions& options) {
  const SpecialTokens& special = options.special;
  const auto num_special = static_cast<std::int32_t>(special.distinct().size());
  if (options.vocab_size < kNumBytes + num_special) {
    fail(ErrorKind::usage,
         "a vocabulary of {} is too small: the 256 bytes and {} special tokens need {}",
         options.vocab_size, num_special, kNumBytes + num_special);
  }
  if (options.vocab_size > kMaxTokenId) {
    fail(ErrorKind::usage, "a vocabulary of {} is too large: the limit is {}", options.vocab_size,
         kMaxTokenId);
  }
  std::map<std::string, std::int32_t> id_of;
  std::map<std::int32_t, std::string> content_of;
  for (const auto* token : {&special.bos, &special.eos, &special.pad}) {
    if (!*token) continue;
    check_special(**token, options.vocab_size);
    const auto by_content = id_of.try_emplace((*token)->content, (*token)->id).first;
    const auto by_id = content_of.try_emplace((*token)->id, (*token)->content).first;
    if (by_content->second != (*token)->id || by_id->second != (*token)->content) {
      fail(ErrorKind::usage,
           "special token \"{}\" with id {} clashes with \"{}\" with id {}: give both the same "
           "name and "
           "id, or different ones",
           (*token)->content, (*token)->id, by_id->second, by_content->second);
    }
  }
  if (options.min_count < 1) {
    fail(ErrorKind::usage, "the lowest count of a merged pair is {}; it must be at least 1",
         options.min_count);
  }
}

TrainedBpe train_bpe(const WordCounts& counts, const BpeTrainOptions& options) {
  check_train_options(options);
  TrainedBpe trained{.special = options.special};
  const std::vector<std::int32_t> ids = free_ids(options);
  std::vector<std::string> token_of_symbol;
  std::unordered_map<std::string, std::int32_t> symbol_of_token;
  const auto add_token = [&](const std::string& bytes) {
    const auto symbol = static_cast<std::int32_t>(token_of_symbol.size());
    trained.vocab.emplace_back(ids[static_cast<std::size_t>(symbol)], bytes);
    symbol_of_token.emplace(bytes, symbol);
    token_of_symbol.push_back(bytes);
    return symbol;
  };
  for (int b = 0; b < kNumBytes; ++b) add_token(std::string(1, static_cast<char>(b)));

  // A token that is written like a special one would be that one to every reader of the file.
  std::set<std::string> reserved;
  for (const std::string& content : options.special.contents()) reserved.insert(content);

  BpePairs pairs(counts.sorted());
  const auto total = static_cast<std::int64_t>(ids.size()) - kNumBytes;
  while (token_of_symbol.size() < ids.size()) {
    const std::optional<BpePairs::Pair> best = pairs.best();
    if (!best || best->count < options.min_count) break;
    const std::string& left = token_of_symbol[static_cast<std::size_t>(best->left)];
    const std::string& right = token_of_symbol[static_cast<std::size_t>(best->right)];
    const std::string product = left + right;
    if (reserved.count(to_byte_symbols(product)) != 0) {
      pairs.forbid(*best);
      continue;
    }
    trained.merges.emplace_back(left, right);
    // Two pairs may make the same text; they share one token.
    const auto known = symbol_of_token.find(product);
    pairs.merge(*best, known != symbol_of_token.end() ? known->second : add_token(product));
    const auto done = static_cast<std::int64_t>(token_of_symbol.size()) - kNumBytes;
    if (options.on_progress && done % kReportEvery == 0) options.on_progress(done, total);
  }
  return trained;
}

}  // namespace dsmoe::text
