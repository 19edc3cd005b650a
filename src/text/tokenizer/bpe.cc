// Loading the model, cutting long pieces, and the step from text to initial symbols.
#include "text/tokenizer/bpe.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"

namespace dsmoe::text {
namespace {

// Longer pieces are cut where no token can span; shorter ones are words and belong to the cache as
// they are.
constexpr std::size_t kCutAbove = WordCache::kMaxKey;

std::size_t pair_bit(std::uint32_t left, std::uint32_t right, std::size_t num_bits) {
  if (left < 256 && right < 256) return left * 256 + right;
  const std::uint64_t key = std::uint64_t{left} << 32 | right;
  return 65536 + (key * 0x9E3779B97F4A7C15u >> 32) % (num_bits - 65536);
}

}  // namespace

BpeModel::BpeModel(const BpeConfig& config, std::string_view what)
    : byte_level_(config.byte_level),
      fuse_unk_(config.fuse_unk),
      ignore_merges_(config.ignore_merges),
      merges_(config.merges.size()),
      joinable_(std::make_unique<std::bitset<kNumPairBits>>()) {
  if (config.unk_token) {
    const auto unk = config.vocab.find(*config.unk_token);
    if (unk == config.vocab.end()) {
      fail(ErrorKind::input, "{}: model.unk_token {} is not in the vocabulary", what,
           in_quotes(*config.unk_token));
    }
    unk_id_ = unk->second;
  }
  load_symbols(config);
  load_merges(config, what);
  decide_cutting();
}

void BpeModel::load_symbols(const BpeConfig& config) {
  byte_ids_.fill(kNoId);
  ascii_ids_.fill(kNoId);
  for (const auto& [token, id] : config.vocab) {
    std::size_t at = 0;
    if (token.empty()) continue;
    const std::uint32_t code = next_code_point(token, at);
    if (at != token.size()) continue;
    char_ids_[code] = id;
    if (code < 128) ascii_ids_[code] = id;
  }
  for (unsigned b = 0; b < 256; ++b) {
    if (byte_level_) {
      byte_ids_[b] = char_id(byte_symbol(static_cast<unsigned char>(b)));
    } else if (config.byte_fallback) {
      const auto token = config.vocab.find(fmt::format("<0x{:02X}>", b));
      if (token != config.vocab.end()) byte_ids_[b] = token->second;
    }
  }
  byte_fallback_ = config.byte_fallback && !byte_level_;
  if (!ignore_merges_) return;
  for (const auto& [token, id] : config.vocab) {
    if (!byte_level_) {
      whole_words_[token] = id;
    } else if (const std::optional<std::string> bytes = from_byte_symbols(token)) {
      whole_words_[*bytes] = id;
    }
  }
}

void BpeModel::load_merges(const BpeConfig& config, std::string_view what) {
  std::uint32_t rank = 0;
  const auto id_of = [&](const std::string& token) {
    const auto found = config.vocab.find(token);
    if (found == config.vocab.end()) {
      fail(ErrorKind::input, "{}: model.merges[{}] needs the token {}, which is not in model.vocab",
           what, rank, in_quotes(token));
    }
    return found->second;
  };
  const auto is_fallback = [&](std::int32_t id) {
    return !byte_level_ && std::find(byte_ids_.begin(), byte_ids_.end(), id) != byte_ids_.end();
  };
  for (const auto& [left, right] : config.merges) {
    const std::int32_t left_id = id_of(left);
    const std::int32_t right_id = id_of(right);
    const std::string product = left + right;
    merges_.insert(left_id, right_id, {.rank = rank, .product = id_of(product)});
    if (config.byte_fallback) {
      merges_use_fallback_ = merges_use_fallback_ || is_fallback(left_id) || is_fallback(right_id);
    }
    note_pairs(product);
    ++rank;
  }
}

void BpeModel::note_pairs(std::string_view product) {
  std::uint32_t before = 0;
  bool has_before = false;
  const auto note = [&](std::uint32_t symbol) {
    if (has_before) joinable_->set(pair_bit(before, symbol, kNumPairBits));
    before = symbol;
    has_before = true;
  };
  if (byte_level_) {
    const std::optional<std::string> bytes = from_byte_symbols(product);
    if (!bytes) return;  // not reachable from bytes
    for (const char c : *bytes) note(static_cast<unsigned char>(c));
    return;
  }
  for (std::size_t at = 0; at < product.size();) note(next_code_point(product, at));
}

// Unknown symbols are dropped or fused with unknown neighbours, which makes neighbours of symbols
// that were not. So pieces are cut only when every symbol of valid text is known.
void BpeModel::decide_cutting() {
  may_cut_ = true;
  for (unsigned b = 0; b < 256; ++b) {
    const bool in_utf8 = b != 0xC0 && b != 0xC1 && b < 0xF5;
    if (in_utf8 && byte_ids_[b] == kNoId) may_cut_ = false;
  }
  if (!byte_level_ && (!byte_fallback_ || merges_use_fallback_)) may_cut_ = false;
}

std::int32_t BpeModel::char_id(std::uint32_t code_point) const {
  if (code_point < 128) return ascii_ids_[code_point];
  const auto found = char_ids_.find(code_point);
  return found == char_ids_.end() ? kNoId : found->second;
}

// End of the first part of piece[from..] behind which no token can span.
std::size_t BpeModel::cut_after(std::string_view piece, std::size_t from) const {
  std::size_t at = from;
  const auto next_symbol = [&] {
    return byte_level_ ? static_cast<unsigned char>(piece[at++]) : next_code_point(piece, at);
  };
  std::uint32_t before = next_symbol();
  while (at < piece.size()) {
    const std::size_t end = at;
    const std::uint32_t symbol = next_symbol();
    if (!joinable_->test(pair_bit(before, symbol, kNumPairBits))) return end;
    before = symbol;
  }
  return piece.size();
}

void BpeModel::encode(std::string_view piece, BpeScratch& scratch,
                      std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    const auto whole = whole_words_.find(std::string(piece));
    if (whole != whole_words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  if (piece.size() <= kCutAbove || !may_cut_) {
    encode_word(piece, scratch, ids);
    return;
  }
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t end = cut_after(piece, at);
    encode_word(piece.substr(at, end - at), scratch, ids);
    at = end;
  }
}

void BpeModel::encode_word(std::string_view word, BpeScratch& scratch,
                           std::vector<std::int32_t>& ids) const {
  const bool cacheable = word.size() <= WordCache::kMaxKey;
  if (cacheable && scratch.cache.find(word, ids)) return;
  const std::size_t first = ids.size();
  to_symbols(word, scratch.symbols);
  merge_and_append(scratch, ids);
  if (cacheable) scratch.cache.remember(word, ids, first);
}

void BpeModel::encode_bytes(std::string_view bytes, BpeScratch& scratch,
                            std::vector<std::int32_t>& ids) const {
  scratch.symbols.clear();
  for (const char c : bytes) scratch.symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  merge_and_append(scratch, ids);
}

void BpeModel::to_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  bool unk_pending =
      false;  // an unknown symbol is written when the next known one comes, as the oracle does
  const auto flush_unk = [&] {
    if (unk_pending) symbols.push_back(unk_id_);
    unk_pending = false;
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t begin = at;
    std::int32_t id;
    if (byte_level_) {
      id = byte_ids_[static_cast<unsigned char>(word[at++])];
    } else {
      id = char_id(next_code_point(word, at));
    }
    if (id != kNoId) {
      flush_unk();
      symbols.push_back(id);
      continue;
    }
    const std::string_view bytes = word.substr(begin, at - begin);
    if (byte_fallback_ && std::all_of(bytes.begin(), bytes.end(), [&](char c) {
          return byte_ids_[static_cast<unsigned char>(c)] != kNoId;
        })) {
      for (const char c : bytes) symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      continue;
    }
    if (unk_id_ == kNoId) continue;  // dropped
    if (!fuse_unk_) flush_unk();
    unk_pending = true;
  }
  flush_unk();
}

}  // namespace dsmoe::text
