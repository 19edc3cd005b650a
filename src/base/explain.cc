// The lines that were said are kept, so that a step of every layer and token says its line once.
#include "base/explain.h"

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "base/log.h"

namespace dsmoe {
namespace {

constexpr std::size_t kMaxLines = 10000;

bool is_asked_for() {
  const char* word = std::getenv("DSMOE_EXPLAIN");
  return word != nullptr && *word != '\0' && std::string_view(word) != "0";
}

}  // namespace

bool is_explaining() {
  static const bool asked = is_asked_for();
  return asked;
}

void explain(std::string_view line) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> said;
  const std::lock_guard lock(mutex);
  if (said.size() < kMaxLines && said.emplace(line).second)
    write_message("dsmoe: explain: " + std::string(line) + "\n");
}

}  // namespace dsmoe
