// The order of work: broken bytes, added tokens, normalizer, pre-tokenizer, model; and the way
// back.
#include "text/tokenizer/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "store/gguf/gguf_file.h"
#include "text/text_files.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/unicode.h"

namespace dsmoe::text {
namespace {

constexpr std::size_t kMaxText = std::size_t{1} << 31;
constexpr std::size_t kKeepScratchBelow = std::size_t{16}
                                          << 20;  // a giant text must not pin its buffers
constexpr std::size_t kMaxFile = std::size_t{256} << 20;
// Every place of a text may be compared with all of an added token.
constexpr std::size_t kMaxAddedToken = 1024;

// What one running encode() needs; kept between calls for its buffers and its word cache.
struct EncodeScratch {
  PreTokenizer::Scratch pieces;
  Normalizer::Scratch normalized;
  std::vector<Section> sections;
  std::vector<Section> normalized_sections;
  BpeScratch bpe;
};

class ModelSink final : public PieceSink {
 public:
  ModelSink(const BpeModel& model, BpeScratch& scratch, std::vector<std::int32_t>& ids)
      : model_(model), scratch_(scratch), ids_(ids) {}
  void piece(std::string_view text) override { model_.encode(text, scratch_, ids_); }

 private:
  const BpeModel& model_;
  BpeScratch& scratch_;
  std::vector<std::int32_t>& ids_;
};

struct Token {
  std::string written;
  std::string bytes;
  bool is_added = false;
  bool is_special = false;
};

}  // namespace

struct Tokenizer::State {
  State(TokenizerParts parts, std::string_view what)
      : normalizer(std::move(parts.normalizer)),
        pre_tokenizer(std::move(parts.pre_tokenizer)),
        model(parts.model, what),
        frame(std::move(parts.frame)),
        decoder(std::move(parts.decoder)) {
    bytes_depend_on_place = depends_on_place(decoder);
    load_tokens(parts, what);
  }

  void load_tokens(TokenizerParts& parts, std::string_view what) {
    std::int32_t max_id = -1;
    for (const auto& [written, id] : parts.model.vocab) max_id = std::max(max_id, id);
    for (const AddedToken& token : parts.added_tokens) max_id = std::max(max_id, token.id);
    slot_of_id.assign(static_cast<std::size_t>(max_id + 1), kNoSlot);
    tokens.reserve(parts.model.vocab.size() + parts.added_tokens.size());
    RegexScratch scratch;
    for (const auto& [written, id] : parts.model.vocab) {
      Token& token = token_for(id, written);
      token.bytes = decode_token(decoder, written, TokenPlace::later, scratch);
    }
    id_of_token = std::move(parts.model.vocab);
    Normalizer::Scratch buffers;
    for (const AddedToken& added : parts.added_tokens) {
      Token& token = token_for(added.id, added.content);
      id_of_token.emplace(added.content, added.id);
      token.is_added = true;
      token.is_special = added.special;
      PieceStart start;
      const std::string_view pattern =
          added.normalized ? normalizer.apply(added.content, start, buffers, scratch)
                           : added.content;
      if (pattern.size() > kMaxAddedToken) {
        fail(ErrorKind::input, "{}: the added token {} has {} bytes, more than the limit of {}",
             what, added.id, pattern.size(), kMaxAddedToken);
      }
      token.bytes = decode_literal_token(decoder, pattern, TokenPlace::later, scratch);
      if (bytes_depend_on_place) {
        added_at_start[added.id] =
            decode_literal_token(decoder, pattern, TokenPlace::first, scratch);
      }
      if (!pattern.empty())
        (added.normalized ? normalized_tokens : added_tokens).add(added, pattern);
    }
  }

  Token& token_for(std::int32_t id, const std::string& written) {
    std::uint32_t& slot = slot_of_id[static_cast<std::size_t>(id)];
    if (slot == kNoSlot) {
      slot = static_cast<std::uint32_t>(tokens.size());
      tokens.push_back({.written = written, .bytes = {}});
    }
    return tokens[slot];
  }

  const Token* find(std::int32_t id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= slot_of_id.size()) return nullptr;
    const std::uint32_t slot = slot_of_id[static_cast<std::size_t>(id)];
    return slot == kNoSlot ? nullptr : &tokens[slot];
  }

  std::optional<std::int32_t> id_of(std::string_view token) const {
    const auto found = id_of_token.find(std::string(token));
    if (found == id_of_token.end()) return std::nullopt;
    return found->second;
  }

  std::unique_ptr<EncodeScratch> lease() const {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        std::unique_ptr<EncodeScratch> scratch = std::move(idle.back());
        idle.pop_back();
        return scratch;
      }
    }
    return std::make_unique<EncodeScratch>();
  }

  void give_back(std::unique_ptr<EncodeScratch> scratch) const {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(scratch));
  }

  void encode_valid(std::string_view text, PieceStart start, ParseSpecial parse_special,
                    EncodeScratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode_broken(std::string_view text, std::size_t valid_end, ParseSpecial parse_special,
                     EncodeScratch& scratch, std::vector<std::int32_t>& ids) const;

  static constexpr std::uint32_t kNoSlot = 0xFFFFFFFF;

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  TextFrame frame;
  DecoderSteps decoder;
  bool bytes_depend_on_place = false;
  std::unordered_map<std::int32_t, std::string> added_at_start;  // their bytes, if they depend
  AddedTokenMatcher added_tokens;                                // looked for in the text as it is
  AddedTokenMatcher normalized_tokens;  // looked for in the normalized text
  std::vector<Token> tokens;
  std::vector<std::uint32_t> slot_of_id;
  std::unordered_map<std::string, std::int32_t> id_of_token;

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<EncodeScratch>> idle;
};

void Tokenizer::State::encode_valid(std::string_view text, PieceStart start,
                                    ParseSpecial parse_special, EncodeScratch& scratch,
                                    std::vector<std::int32_t>& ids) const {
  scratch.pieces.regex.has_recent = has_recent(text);
  ModelSink sink(model, scratch.bpe, ids);
  added_tokens.split(text, parse_special, scratch.pieces.regex, scratch.sections);
  for (const Section& section : scratch.sections) {
    if (section.id != Section::kPlainText) {
      ids.push_back(section.id);
      continue;
    }
    PieceStart section_start = start_of_part(start, section.span.begin);
    const std::string_view normalized =
        normalizer.apply(text.substr(section.span.begin, section.span.end - section.span.begin),
                         section_start, scratch.normalized, scratch.pieces.regex);
    normalized_tokens.split(normalized, parse_special, scratch.pieces.regex,
                            scratch.normalized_sections);
    for (const Section& part : scratch.normalized_sections) {
      if (part.id != Section::kPlainText) {
        ids.push_back(part.id);
        continue;
      }
      pre_tokenizer.run(normalized.substr(part.span.begin, part.span.end - part.span.begin),
                        start_of_part(section_start, part.span.begin), scratch.pieces, sink);
    }
  }
}

// Cuts the text at ill-formed parts. Each part becomes byte tokens, or U+FFFD inside the text
// around it when the vocabulary has no token for one of its bytes.
void Tokenizer::State::encode_broken(std::string_view text, std::size_t valid_end,
                                     ParseSpecial parse_special, EncodeScratch& scratch,
                                     std::vector<std::int32_t>& ids) const {
  std::string valid;
  std::string raw;
  bool continues = false;
  const auto flush_valid = [&] {
    if (valid.empty()) return;
    const PieceStart start = continues ? PieceStart{.is_continuation = true} : start_of_text(valid);
    encode_valid(valid, start, parse_special, scratch, ids);
    continues = true;
    valid.clear();
  };
  const auto flush_raw = [&] {
    if (raw.empty()) return;
    model.encode_bytes(raw, scratch.bpe, ids);
    continues = true;
    raw.clear();
  };
  std::size_t at = 0;
  std::size_t end = valid_end;
  while (true) {
    if (end > at) {
      flush_raw();
      valid.append(text.substr(at, end - at));
    }
    if (end == text.size()) break;
    const std::string_view part = text.substr(end, ill_formed_length(text, end));
    if (std::all_of(part.begin(), part.end(),
                    [&](char c) { return model.can_encode_byte(static_cast<unsigned char>(c)); })) {
      flush_valid();
      raw.append(part);
    } else {
      flush_raw();
      valid.append(kReplacement);
    }
    at = end + part.size();
    end = valid_utf8_end(text, at);
  }
  flush_raw();
  flush_valid();
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_file(const std::string& path) {
  std::error_code ignored;  // opening the file says what is wrong
  const bool is_model = std::filesystem::is_directory(path, ignored) || store::gguf::is_gguf(path);
  const std::filesystem::path folder =
      is_model ? std::filesystem::path(path) : std::filesystem::path(path).parent_path();
  auto file = is_model ? read_text_file(path, "tokenizer.json", kMaxFile)
                       : TextFile{.bytes = read_small_file(path, kMaxFile), .what = path};
  if (!file) fail(ErrorKind::io, "{}: no tokenizer in it", path);
  auto state = std::make_unique<State>(parse_tokenizer_json(file->bytes, file->what), file->what);
  const auto config = read_tokenizer_config(folder);
  if (!config) return Tokenizer(std::move(state));
  const std::string what = (folder / kTokenizerConfigFile).string();
  TextFrame frame = choose_frame(state->frame, *config, what,
                                 [&](std::string_view token) { return state->id_of(token); });
  const bool differs = frame.before != state->frame.before || frame.after != state->frame.after;
  state->frame = std::move(frame);
  Tokenizer tokenizer(std::move(state));
  if (differs) log_info("{}: a text {}, unlike in tokenizer.json", what, describe_frame(tokenizer));
  return tokenizer;
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view what) {
  return Tokenizer(std::make_unique<State>(parse_tokenizer_json(json, what), what));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  if (text.size() >= kMaxText) {
    fail(ErrorKind::input, "a text of {} bytes is too long to encode at once; split it below {}",
         text.size(), kMaxText);
  }
  std::vector<std::int32_t> ids;
  if (options.add_special == AddSpecial::yes) ids = state_->frame.before;
  std::unique_ptr<EncodeScratch> scratch = state_->lease();
  const std::size_t end = valid_utf8_end(text);
  if (end == text.size()) {
    state_->encode_valid(text, start_of_text(text), options.parse_special, *scratch, ids);
  } else {
    state_->encode_broken(text, end, options.parse_special, *scratch, ids);
  }
  if (text.size() <= kKeepScratchBelow) state_->give_back(std::move(scratch));
  if (options.add_special == AddSpecial::yes) {
    ids.insert(ids.end(), state_->frame.after.begin(), state_->frame.after.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids,
                              const DecodeOptions& options) const {
  StreamDecoder stream(*this, options);
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

const TextFrame& Tokenizer::frame() const { return state_->frame; }

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(state_->slot_of_id.size());
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return state_->id_of(token);
}

std::optional<std::string> Tokenizer::id_to_token(std::int32_t id) const {
  const Token* token = state_->find(id);
  if (token == nullptr) return std::nullopt;
  return token->written;
}

std::optional<std::string> Tokenizer::id_to_bytes(std::int32_t id) const {
  const Token* token = state_->find(id);
  if (token == nullptr) return std::nullopt;
  return token->bytes;
}

bool Tokenizer::is_special(std::int32_t id) const {
  const Token* token = state_->find(id);
  return token != nullptr && token->is_special;
}

std::string describe_frame(const Tokenizer& tokenizer) {
  const auto named = [&](const char* verb, const std::vector<std::int32_t>& ids) {
    std::string words;
    for (const std::int32_t id : ids) {
      words += fmt::format("{}{} ({})", words.empty() ? verb : " ",
                           in_quotes(tokenizer.id_to_token(id).value_or("")), id);
    }
    return words;
  };
  const std::string before = named("begins with ", tokenizer.frame().before);
  const std::string after = named("ends with ", tokenizer.frame().after);
  if (before.empty() && after.empty()) return "has no token around it";
  return before + (before.empty() || after.empty() ? "" : ", ") + after;
}

struct StreamDecoder::Progress {
  const Tokenizer::State& state;
  DecodeOptions options;
  StreamStrip strip;
  std::unique_ptr<RegexScratch> scratch = nullptr;  // made when a token needs decoding here
  bool is_first = true;
  std::string tail = {};  // stripped bytes that wait for the rest of their character

  std::string release(std::size_t num_held) {
    std::string out = tail.substr(0, tail.size() - num_held);
    tail.erase(0, out.size());
    return options.ill_formed == IllFormed::replace ? replace_ill_formed(out) : out;
  }
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options)
    : progress_(std::make_unique<Progress>(
          Progress{.state = *tokenizer.state_,
                   .options = options,
                   .strip = StreamStrip(tokenizer.state_->decoder.whole_text)})) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(std::int32_t id) {
  Progress& p = *progress_;
  const Token* token = p.state.find(id);
  if (token == nullptr) return {};
  if (token->is_special && p.options.skip_special == SkipSpecial::yes) return {};
  if (!p.is_first && p.state.decoder.joins_with_space) p.strip.push(" ", p.tail);
  if (p.is_first && p.state.bytes_depend_on_place && token->is_added) {
    p.strip.push(p.state.added_at_start.at(id), p.tail);
  } else if (p.is_first && p.state.bytes_depend_on_place) {
    if (!p.scratch) p.scratch = std::make_unique<RegexScratch>();
    p.strip.push(decode_token(p.state.decoder, token->written, TokenPlace::first, *p.scratch),
                 p.tail);
  } else {
    p.strip.push(token->bytes, p.tail);
  }
  p.is_first = false;
  return p.release(incomplete_tail(p.tail));
}

std::string StreamDecoder::finish() {
  Progress& p = *progress_;
  p.strip.finish(p.tail);
  p.is_first = true;
  return p.release(0);
}

}  // namespace dsmoe::text
