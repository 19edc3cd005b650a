// Every hash is compared to its end.
#include "serve/api_keys.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::string_view kSpaces = " \t\r\n\v\f";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

uint32_t difference(const std::string& a, const std::string& b) {
  uint32_t bits = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    bits |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return bits;
}

}  // namespace

std::vector<std::string> read_key_file(const std::filesystem::path& path) {
  const std::string text = read_small_file(path, kMaxFileBytes);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors begin a file with it
  std::vector<std::string> keys;
  std::string_view rest = text;
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::string_view key = trimmed(line);
    if (!key.empty() && key.front() != '#') keys.emplace_back(key);
  }
  if (keys.empty()) {
    fail(ErrorKind::input, "{}: expected an API key per line, found none", path.string());
  }
  namespace fs = std::filesystem;
  const fs::perms others = fs::perms::group_all | fs::perms::others_all;
  if ((fs::status(path).permissions() & others) != fs::perms::none) {
    log_warning("{}: other users of this machine may read the API keys in it: chmod 600 {}",
                path.string(), path.string());
  }
  return keys;
}

bool is_blank(std::string_view key) { return trimmed(key).empty(); }

// A server whose operator forgot the key must not run without one.
void check_keys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (is_blank(key)) fail(ErrorKind::usage, "an API key may not be blank");
    const bool has_control = std::any_of(key.begin(), key.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    });
    if (has_control || trimmed(key).size() != key.size()) {
      fail(ErrorKind::usage,
           "an API key may not begin or end with a space or hold control characters: no client "
           "could send it");
    }
  }
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  check_keys(keys);
  for (const std::string& key : keys) {
    // A key given twice would have two places, and be taken for a third one's owner.
    const std::string hash = sha256(key);
    if (std::find(hashes_.begin(), hashes_.end(), hash) == hashes_.end()) hashes_.push_back(hash);
  }
}

std::optional<uint64_t> ApiKeys::find(std::string_view key) const {
  const std::string hash = sha256(key);
  uint64_t found = 0;
  for (std::size_t i = 0; i < hashes_.size(); ++i) {
    const auto is_same = static_cast<uint64_t>(difference(hash, hashes_[i]) == 0);
    found |= is_same * (i + 1);
  }
  return found == 0 ? std::nullopt : std::optional<uint64_t>(found);
}

std::optional<uint64_t> ApiKeys::find_bearer(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return std::nullopt;
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kScheme[i]) return std::nullopt;
  }
  return find(authorization.substr(kScheme.size()));
}

}  // namespace dsmoe::serve
