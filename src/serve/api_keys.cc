// Every hash is compared to its end.
#include "serve/api_keys.h"

#include <algorithm>

#include "base/error.h"
#include "base/sha256.h"

namespace dsmoe::serve {
namespace {

uint32_t difference(const std::string& a, const std::string& b) {
  uint32_t bits = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    bits |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return bits;
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (key.empty()) fail(ErrorKind::usage, "an API key may not be empty");
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
