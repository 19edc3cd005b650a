// One table: a name, and the steps behind it. The patterns are those of the published
// tokenizer.json of each family.
#include "text/tokenizer/gguf_pre_tokenizer.h"

#include <algorithm>
#include <vector>

namespace dsmoe::text {
namespace {

// Letters of the scripts with cases.
constexpr const char* kLetters =
    R"(A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-)"
    R"(ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌ)"
    R"(ῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-)"
    R"(ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃)";

constexpr const char* kPunctuation = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
constexpr const char* kWideScripts = R"([一-龥ࠀ-一가-퟿]+)";

Json split(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}
Json digits() { return {{"type", "Digits"}, {"individual_digits", true}}; }
enum class OwnPattern { no, yes };
Json byte_level(OwnPattern own) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", own == OwnPattern::yes}};
}
Json sequence(std::vector<Json> steps) {
  steps.push_back(byte_level(OwnPattern::no));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// Words as GPT-4's pattern cuts them, with so many digits together.
std::string words(const char* numbers) {
  return std::string(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)") + numbers +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::vector<NamedPreTokenizer> make_table() {
  const Json none, nfc = {{"type", "NFC"}};
  const Json gpt2 = byte_level(OwnPattern::yes);
  return {
      {"gpt-2", none, gpt2},
      {"gigachat", none, gpt2},
      {"deepseek-llm", none,
       sequence({split(R"([\r\n])"), split(R"(\s?[)" + std::string(kLetters) + "]+"),
                 split(kPunctuation), split(R"(\s+$)"), split(kWideScripts), digits()})},
      {"deepseek-coder", none,
       sequence({split(R"([\r\n])"), split(R"(\s?\p{L}+)"), split(R"(\s?\p{P}+)"),
                 split(kWideScripts), digits()})},
      {"deepseek-v3", none,
       sequence({split(R"(\p{N}{1,3})"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
                 split(R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                       R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
                       R"(\s*[\r\n]+|\s+(?!\S)|\s+)")})},
      {"qwen2", nfc, sequence({split(words(R"(\p{N})"))})},
      {"glm4", none, sequence({split(words(R"(\p{N}{1,3})"))})},
      {"chatglm-bpe", none, sequence({split(words(R"(\p{N}{1,3})"))})},
  };
}

const std::vector<NamedPreTokenizer>& table() {
  static const std::vector<NamedPreTokenizer> all = make_table();
  return all;
}

// Line ends as escapes, whichever way a file writes them.
std::string with_escapes(const std::string& regex) {
  std::string out;
  for (const char c : regex) out += c == '\r' ? "\\r" : c == '\n' ? "\\n" : std::string(1, c);
  return out;
}

// Without what changes nothing: offsets, spellings, and sequences of no steps or of one.
Json canonical(Json step) {
  if (!step.is_object()) return step;
  step.erase("trim_offsets");
  if (step.contains("pattern") && step["pattern"].contains("Regex") &&
      step["pattern"]["Regex"].is_string()) {
    step["pattern"]["Regex"] = with_escapes(step["pattern"]["Regex"].get<std::string>());
  }
  for (const char* key : {"pretokenizers", "normalizers"}) {
    if (!step.contains(key) || !step[key].is_array()) continue;
    for (Json& inner : step[key]) inner = canonical(std::move(inner));
    if (step[key].empty()) return nullptr;
    if (step[key].size() == 1) return Json(step[key][0]);
  }
  return step;
}

}  // namespace

const NamedPreTokenizer* find_pre_tokenizer(std::string_view name) {
  const auto found = std::ranges::find(table(), name, &NamedPreTokenizer::name);
  return found == table().end() ? nullptr : &*found;
}

const NamedPreTokenizer* match_pre_tokenizer(const Json& normalizer, const Json& pre_tokenizer) {
  const Json normal = canonical(normalizer), pre = canonical(pre_tokenizer);
  const auto found = std::ranges::find_if(table(), [&](const NamedPreTokenizer& named) {
    return canonical(named.normalizer) == normal && canonical(named.pre_tokenizer) == pre;
  });
  return found == table().end() ? nullptr : &*found;
}

std::string names_of_pre_tokenizers() {
  std::string names;
  for (const NamedPreTokenizer& named : table()) {
    names += (names.empty() ? "" : ", ") + named.name;
  }
  return names;
}

}  // namespace dsmoe::text
