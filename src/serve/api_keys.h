// API keys: kept as hashes, compared in constant time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::serve {

// One key per line, without the spaces around it; blank lines and those that begin with # are left
// out. Throws Error(input) when no key is left; warns when others can read the file.
std::vector<std::string> read_key_file(const std::filesystem::path& path);

// Nothing but spaces.
bool is_blank(std::string_view key);
// Throws Error(usage) when a key is blank, or one that no header can carry.
void check_keys(const std::vector<std::string>& keys);

class ApiKeys {
 public:
  // Throws what check_keys() throws.
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
