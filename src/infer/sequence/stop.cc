// One byte at a time, keeping the longest end of the text that is the beginning of a stop string.
#include "infer/sequence/stop.h"

#include <algorithm>

#include "base/error.h"

namespace dsmoe::infer {
namespace {

constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopBytes = 1024;

}  // namespace

void StopStrings::Search::take(char byte) {
  while (matched > 0 && (matched == stop.size() || stop[matched] != byte)) {
    matched = border[matched];
  }
  if (stop[matched] == byte) ++matched;
}

StopStrings::StopStrings(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    fail(ErrorKind::input, "{} stop strings, at most {} are possible", stops.size(), kMaxStops);
  }
  for (std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      fail(ErrorKind::input, "a stop string has {} bytes, expected 1 to {}", stop.size(),
           kMaxStopBytes);
    }
    Search search{.stop = std::move(stop), .border = {0, 0}};
    // The borders of a string are a search for it in itself, one byte late.
    for (std::size_t i = 1; i < search.stop.size(); ++i) {
      search.take(search.stop[i]);
      search.border.push_back(search.matched);
    }
    search.matched = 0;
    searches_.push_back(std::move(search));
  }
}

std::string StopStrings::push(std::string_view piece) {
  std::string shown;
  for (const char byte : piece) {
    if (stopped()) break;
    held_ += byte;
    const Search* complete = nullptr;
    std::size_t longest = 0;
    for (Search& search : searches_) {
      search.take(byte);
      longest = std::max(longest, search.matched);
      if (search.matched < search.stop.size()) continue;
      // Of several that end here the longest began first.
      if (complete == nullptr || search.stop.size() > complete->stop.size()) complete = &search;
    }
    const std::size_t kept = complete != nullptr ? complete->stop.size() : longest;
    shown.append(held_, 0, held_.size() - kept);
    held_.erase(0, held_.size() - kept);
    if (complete != nullptr) {
      held_.clear();
      found_ = complete->stop;
    }
  }
  return shown;
}

std::string StopStrings::finish() {
  std::string rest;
  rest.swap(held_);
  return rest;
}

}  // namespace dsmoe::infer
