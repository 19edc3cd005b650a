// API keys: kept as hashes, compared in constant time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::serve {

class ApiKeys {
 public:
  // Throws Error(usage) on an empty key.
  explicit ApiKeys(const std::vector<std::string>& keys);

  bool empty() const { return hashes_.empty(); }
  // The key's number from 1; nothing when it is none of them. Takes the same time for every guess.
  std::optional<uint64_t> find(std::string_view key) const;
  // From "Bearer KEY".
  std::optional<uint64_t> find_bearer(std::string_view authorization) const;

 private:
  std::vector<std::string> hashes_;  // SHA-256, hexadecimal
};

}  // namespace dsmoe::serve
