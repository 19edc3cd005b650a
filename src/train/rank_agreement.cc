// Texts of the first rank come to all, who compare.
#include "train/rank_agreement.h"

#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe::train {
namespace {

std::string first_ranks(comm::Group& group, const std::string& own) {
  auto size = static_cast<int64_t>(own.size());
  group.broadcast("what ranks have to agree on", 0, std::as_writable_bytes(std::span(&size, 1)));
  std::string text = group.rank() == 0 ? own : std::string(static_cast<std::size_t>(size), ' ');
  group.broadcast("what ranks have to agree on", 0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 200;
  return in_quotes(text.size() <= kMost ? text : text.substr(0, kMost) + "..");
}

}  // namespace

void expect_agreement(comm::Group& group, std::span<const Agreed> own) {
  for (const auto& [name, value] : own) {
    const std::string expected = first_ranks(group, value);
    const std::vector<int> differs = group.gather("whether ranks agree", value == expected ? 0 : 1);
    for (std::size_t rank = 0; rank < differs.size(); ++rank) {
      if (differs[rank] == 0) continue;
      const bool is_own = static_cast<int>(rank) == group.rank();
      fail(ErrorKind::usage,
           "rank {} has another {} than rank 0, which has {}{}; start all ranks alike", rank, name,
           shortened(expected), is_own ? fmt::format(", not {}", shortened(value)) : "");
    }
  }
}

}  // namespace dsmoe::train
