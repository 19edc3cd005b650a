// One small function per component type.
#include "text/tokenizer/tokenizer_components.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer/json_fields.h"

namespace dsmoe::text {
namespace {

constexpr std::size_t kMaxSteps = 64;
constexpr std::size_t kMaxInserted = 1024;  // bytes of a prefix or replacement
// \p{N} as Rust's is_numeric has it: two blocks of Unicode 17 on top.
constexpr std::string_view kNumericPattern = "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";

// Punctuation as the oracle has it: ASCII's, and \p{P} of Unicode 8.
constexpr std::string_view kPunctuationPattern =
    "(?!["
    "\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b4e}-\\x{1b4f}\\x{1b7d}-\\x{1b7f}"
    "\\x{2e43}-\\x{2e4f}\\x{2e52}-\\x{2e5d}\\x{10d6e}\\x{10ead}\\x{10f55}-\\x{10f59}"
    "\\x{10f86}-\\x{10f89}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}\\x{1144b}-\\x{1144f}"
    "\\x{1145a}-\\x{1145b}\\x{1145d}\\x{11660}-\\x{1166c}\\x{116b9}\\x{1183b}"
    "\\x{11944}-\\x{11946}\\x{119e2}\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11a9c}"
    "\\x{11a9e}-\\x{11aa2}\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11c41}-\\x{11c45}"
    "\\x{11c70}-\\x{11c71}\\x{11ef7}-\\x{11ef8}\\x{11f43}-\\x{11f4f}\\x{11fff}"
    "\\x{12ff1}-\\x{12ff2}\\x{16d6d}-\\x{16d6f}\\x{16e97}-\\x{16e9a}\\x{16fe2}\\x{1e5ff}"
    "\\x{1e95e}-\\x{1e95f}"
    "])[\\p{P}!-/:-@\\[-`{-~\\x{166d}\\x{111c9}]";

template <class Steps>
void check_count(const Steps& steps, const std::string& path) {
  if (steps.size() >= kMaxSteps) {
    fail(ErrorKind::input, "{}: more than {} steps in sequence", path, kMaxSteps);
  }
}

[[noreturn]] void refuse_type(const std::string& path, std::string_view kind,
                              const std::string& type, std::string_view supported) {
  fail(ErrorKind::input, "{}: the {} {} is not supported; supported are {}", path, kind,
       in_quotes(type), supported);
}

// {"String": "..."} or {"Regex": "..."}
Pattern read_pattern(const JsonFields& fields) {
  const JsonFields pattern(fields.require("pattern"), fields.path_of("pattern"));
  pattern.allow_only({"String", "Regex"});
  const bool is_regex = pattern.find("Regex") != nullptr;
  if (is_regex && pattern.find("String") != nullptr)
    fields.refuse("pattern", "String or Regex, not both");
  std::string text = pattern.string(is_regex ? "Regex" : "String");
  if (text.empty()) fields.refuse("pattern", "a pattern that is not empty");
  if (is_regex) return Pattern::from_regex(text, pattern.path_of("Regex"));
  return Pattern::from_literal(std::move(text));
}

std::string read_inserted(const JsonFields& fields, std::string_view key) {
  std::string text = fields.string(key);
  if (text.size() > kMaxInserted) {
    fail(ErrorKind::input, "{}: {} bytes, more than the limit of {}", fields.path_of(key),
         text.size(), kMaxInserted);
  }
  return text;
}

SplitBehavior read_behavior(const JsonFields& fields) {
  const std::string name = fields.string("behavior");
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  fields.refuse("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void read_byte_level(const JsonFields& fields, const std::string& path, TokenizerParts& parts) {
  fields.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  fields.boolean("trim_offsets", true);
  if (fields.boolean("add_prefix_space", true)) parts.pre_tokenizer.emplace_back(PrefixSpaceStep{});
  if (fields.boolean("use_regex", true)) {
    parts.pre_tokenizer.emplace_back(SplitStep{.pattern = Pattern::from_regex(kGpt2Pattern, path)});
  }
  parts.model.byte_level = true;
}

}  // namespace

ReplaceStep read_replace(const JsonFields& fields) {
  fields.allow_only({"type", "pattern", "content"});
  return {.pattern = read_pattern(fields), .content = read_inserted(fields, "content")};
}

PrependScheme read_prepend_scheme(const JsonFields& fields) {
  fields.allow_only(
      {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  const bool prefix_space = fields.boolean("add_prefix_space", true);
  PrependScheme scheme = prefix_space ? PrependScheme::always : PrependScheme::never;
  if (fields.find("prepend_scheme") != nullptr) {
    const std::string name = fields.string("prepend_scheme");
    if (name == "always") {
      scheme = PrependScheme::always;
    } else if (name == "first") {
      scheme = PrependScheme::first;
    } else if (name == "never") {
      scheme = PrependScheme::never;
    } else {
      fields.refuse("prepend_scheme", "always, first or never");
    }
    if (!prefix_space && scheme != PrependScheme::never) {
      fields.refuse("prepend_scheme", "never, because add_prefix_space is false");
    }
  }
  return scheme;
}

void read_normalizer(const Json& json, const std::string& path,
                     std::vector<NormalizerStep>& steps) {
  const JsonFields fields(json, path);
  const std::string type = fields.string("type");
  check_count(steps, path);
  if (type == "Sequence") {
    fields.allow_only({"type", "normalizers"});
    fields.for_each("normalizers", [&](const Json& item, const std::string& item_path) {
      read_normalizer(item, item_path, steps);
    });
  } else if (type == "Prepend") {
    fields.allow_only({"type", "prepend"});
    steps.emplace_back(PrependStep{.prefix = read_inserted(fields, "prepend")});
  } else if (type == "Replace") {
    steps.emplace_back(read_replace(fields));
  } else if (type == "Strip") {
    fields.allow_only({"type", "strip_left", "strip_right"});
    steps.emplace_back(StripStep{.left = fields.boolean("strip_left", true),
                                 .right = fields.boolean("strip_right", true)});
  } else if (type == "NFC") {
    fields.allow_only({"type"});
    steps.emplace_back(NfcStep{});
  } else {
    refuse_type(path, "normalizer", type, "Sequence, NFC, Prepend, Replace and Strip");
  }
}

void read_pre_tokenizer(const Json& json, const std::string& path, TokenizerParts& parts) {
  const JsonFields fields(json, path);
  const std::string type = fields.string("type");
  std::vector<PreTokenizerStep>& steps = parts.pre_tokenizer;
  check_count(steps, path);
  if (type == "Sequence") {
    fields.allow_only({"type", "pretokenizers"});
    fields.for_each("pretokenizers", [&](const Json& item, const std::string& item_path) {
      read_pre_tokenizer(item, item_path, parts);
    });
    return;
  }
  if (parts.model.byte_level) {
    fail(ErrorKind::input, "{}: {} behind ByteLevel is not supported; ByteLevel must come last",
         path, in_quotes(type));
  }
  if (type == "Split") {
    fields.allow_only({"type", "pattern", "behavior", "invert"});
    steps.emplace_back(SplitStep{.pattern = read_pattern(fields),
                                 .behavior = read_behavior(fields),
                                 .invert = fields.boolean("invert", false)});
  } else if (type == "Digits") {
    fields.allow_only({"type", "individual_digits"});
    steps.emplace_back(SplitStep{.pattern = Pattern::from_regex(kNumericPattern, path),
                                 .behavior = fields.boolean("individual_digits", false)
                                                 ? SplitBehavior::isolated
                                                 : SplitBehavior::contiguous});
  } else if (type == "Punctuation") {
    fields.allow_only({"type", "behavior"});
    steps.emplace_back(SplitStep{.pattern = Pattern::from_regex(kPunctuationPattern, path),
                                 .behavior = fields.find("behavior") == nullptr
                                                 ? SplitBehavior::isolated
                                                 : read_behavior(fields)});
  } else if (type == "ByteLevel") {
    read_byte_level(fields, path, parts);
  } else if (type == "Metaspace") {
    steps.emplace_back(MetaspaceStep{.replacement = fields.character("replacement"),
                                     .scheme = read_prepend_scheme(fields),
                                     .split = fields.boolean("split", true)});
  } else if (type == "WhitespaceSplit") {
    fields.allow_only({"type"});
    steps.emplace_back(SplitStep{.pattern = Pattern::from_regex("\\s+", path),
                                 .behavior = SplitBehavior::removed});
  } else {
    refuse_type(path, "pre-tokenizer", type,
                "Sequence, Split, Digits, Punctuation, ByteLevel, Metaspace and WhitespaceSplit");
  }
}

void read_post_processor(const Json& json, const std::string& path, TokenizerParts& parts) {
  const JsonFields fields(json, path);
  const std::string type = fields.string("type");
  if (type == "Sequence") {
    fields.allow_only({"type", "processors"});
    fields.for_each("processors", [&](const Json& item, const std::string& item_path) {
      read_post_processor(item, item_path, parts);
    });
    return;
  }
  if (type == "ByteLevel") {  // changes offsets only
    fields.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return;
  }
  if (type != "TemplateProcessing") {
    refuse_type(path, "post-processor", type, "Sequence, ByteLevel and TemplateProcessing");
  }
  fields.allow_only({"type", "single", "pair", "special_tokens"});
  const JsonFields special_tokens(fields.require("special_tokens"),
                                  fields.path_of("special_tokens"));
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
  int num_sequences = 0;
  fields.for_each("single", [&](const Json& piece, const std::string& piece_path) {
    const JsonFields one(piece, piece_path);
    one.allow_only({"Sequence", "SpecialToken"});
    if (one.find("Sequence") != nullptr) {
      const JsonFields sequence(one.require("Sequence"), one.path_of("Sequence"));
      if (sequence.string("id") != "A") sequence.refuse("id", "\"A\"");
      ++num_sequences;
      return;
    }
    const JsonFields token(one.require("SpecialToken"), one.path_of("SpecialToken"));
    const std::string name = token.string("id");
    const JsonFields definition(special_tokens.require(name), special_tokens.path_of(name));
    definition.for_each("ids", [&](const Json& id, const std::string& id_path) {
      (num_sequences == 0 ? before : after).push_back(token_id_from(id, id_path));
    });
  });
  if (num_sequences != 1) {
    fail(ErrorKind::input, "{}.single: expected the sequence A exactly once, got it {} times", path,
         num_sequences);
  }
  parts.frame.before.insert(parts.frame.before.begin(), before.begin(), before.end());
  parts.frame.after.insert(parts.frame.after.end(), after.begin(), after.end());
}

}  // namespace dsmoe::text
