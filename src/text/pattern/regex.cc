// Two compiled forms per pattern, a table of possible first bytes, and the limits.
#include "text/pattern/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"
#include "text/pattern/oniguruma.h"

namespace dsmoe::text {
namespace {

// Published pre-tokenizer patterns are below 2 KiB; a match uses a handful of steps that count.
constexpr std::size_t kMaxPattern = 16 * 1024;
constexpr std::size_t kMaxTranslated = 256 * 1024;
constexpr std::size_t kMatchLimit = 10'000'000;
constexpr std::size_t kStepsPerByte = 4;  // a group repeated over a long run takes a step each time
constexpr std::uint32_t kDepthLimit = 100'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kJitStackStart = 32 * 1024;
constexpr std::size_t kJitStackMax = 8 * 1024 * 1024;

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

struct CompileContext {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  CompileContext() {
    if (context == nullptr) fail(ErrorKind::resource, "out of memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_max_pattern_length(context, kMaxTranslated);
  }
  ~CompileContext() { pcre2_compile_context_free(context); }
  CompileContext(const CompileContext&) = delete;
  CompileContext& operator=(const CompileContext&) = delete;
};

}  // namespace

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {
  if (state_->data == nullptr || state_->context == nullptr) {
    fail(ErrorKind::resource, "out of memory for matching regular expressions");
  }
  pcre2_set_depth_limit(state_->context, kDepthLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool has_jit = false;
  bool any_start = true;           // `starts` says nothing
  std::array<bool, 256> starts{};  // bytes a match can start with

  Code(pcre2_code* compiled, bool wants_jit) : code(compiled) {
    has_jit = wants_jit && pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    learn_starts();
  }
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  void learn_starts() {
    std::uint32_t matches_empty = 1;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) return;
    std::uint32_t first_type = 0;
    pcre2_pattern_info(code, PCRE2_INFO_FIRSTCODETYPE, &first_type);
    std::uint32_t caseless_unit = 0;
    if (first_type == 1) {
      // PCRE2 does not tell whether the unit is caseless: both cases may start a match.
      pcre2_pattern_info(code, PCRE2_INFO_FIRSTCODEUNIT, &caseless_unit);
      if (caseless_unit < 0x80) {
        starts[caseless_unit] = true;
        starts[static_cast<unsigned char>(std::tolower(static_cast<int>(caseless_unit)))] = true;
        starts[static_cast<unsigned char>(std::toupper(static_cast<int>(caseless_unit)))] = true;
        any_start = false;
      }
      return;
    }
    const std::uint8_t* bitmap = nullptr;
    pcre2_pattern_info(code, PCRE2_INFO_FIRSTBITMAP, &bitmap);
    if (bitmap == nullptr) return;
    for (std::size_t b = 0; b < 256; ++b) starts[b] = (bitmap[b / 8] >> (b % 8) & 1) != 0;
    any_start = false;
  }

  int search(std::string_view text, std::size_t from, const RegexScratch::State& scratch) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const std::size_t limit = std::max(kMatchLimit, text.size() * kStepsPerByte);
    pcre2_set_match_limit(scratch.context, static_cast<std::uint32_t>(std::min<std::size_t>(
                                               limit, std::numeric_limits<std::uint32_t>::max())));
    if (has_jit) {
      const int rc =
          pcre2_jit_match(code, subject, text.size(), from, 0, scratch.data, scratch.context);
      if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    return pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       scratch.data, scratch.context);
  }

  static std::unique_ptr<Code> compile(const std::string& pattern, std::string_view what) {
    const CompileContext context;
    int error = 0;
    PCRE2_SIZE offset = 0;
    // PCRE2 10.42 makes a repeat in front of (?:...)?+ possessive as if the group had to match.
    const std::uint32_t extra =
        pattern.find(")?+") != std::string::npos ? PCRE2_NO_AUTO_POSSESS : 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | extra,
                      &error, &offset, context.context);
    if (code == nullptr) {
      fail(ErrorKind::input, "{}: the regular expression does not compile: {}", what,
           pcre2_message(error));
    }
    // Behind (?>A|B), compiled code of PCRE2 10.42 goes back to B although A has matched; the
    // interpreter does not.
    const bool is_atomic = pattern.find("(?>") != std::string::npos;
    return std::make_unique<Code>(code, !is_atomic);
  }
};

Regex::Regex(std::string_view pattern, std::string_view what) : what_(what) {
  if (pattern.size() > kMaxPattern) {
    fail(ErrorKind::input, "{}: the regular expression has {} bytes, more than the limit of {}",
         what, pattern.size(), kMaxPattern);
  }
  if (!is_valid_utf8(pattern)) {
    fail(ErrorKind::input, "{}: the regular expression is not valid UTF-8", what);
  }
  const std::string plain = translate_oniguruma(pattern, what, UnicodeRange::pcre2);
  const std::string recent = translate_oniguruma(pattern, what, UnicodeRange::recent);
  code_ = Code::compile(plain, what);
  if (recent != plain) code_recent_ = Code::compile(recent, what);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, std::size_t from, RegexScratch& scratch,
                 Span& match) const {
  const Code& code = scratch.has_recent && code_recent_ ? *code_recent_ : *code_;
  if (!code.any_start) {
    while (from < text.size() && !code.starts[static_cast<unsigned char>(text[from])]) ++from;
    if (from == text.size()) return false;
  }
  const int rc = code.search(text, from, *scratch.state_);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) {
    fail(ErrorKind::input,
         "{}: the regular expression is too expensive on this text ({}); simplify it, or split the "
         "text",
         what_, pcre2_message(rc));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.state_->data);
  match = {.begin = ends[0], .end = ends[1]};
  return true;
}

}  // namespace dsmoe::text
