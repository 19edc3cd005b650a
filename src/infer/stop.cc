// One byte at a time, keeping the longest end of the text that is the beginning of a stop string.
#include "infer/stop.h"

#include "base/error.h"

namespace dsmoe::infer {
namespace {

constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopBytes = 1024;

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (stops_.size() > kMaxStops) {
    fail(ErrorKind::input, "{} stop strings, at most {} are possible", stops_.size(), kMaxStops);
  }
  for (const std::string& stop : stops_) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      fail(ErrorKind::input, "a stop string has {} bytes, expected 1 to {}", stop.size(),
           kMaxStopBytes);
    }
  }
}

std::string StopStrings::push(std::string_view piece) {
  std::string shown;
  for (const char byte : piece) {
    if (stopped()) break;
    held_ += byte;
    // Of several that end here the longest began first.
    const std::string* complete = nullptr;
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop) && (complete == nullptr || stop.size() > complete->size())) {
        complete = &stop;
      }
    }
    if (complete != nullptr) {
      shown.append(held_, 0, held_.size() - complete->size());
      held_.clear();
      found_ = *complete;
      break;
    }
    std::size_t begin = 0;
    const auto begins_a_stop = [&](std::string_view end) {
      for (const std::string& stop : stops_) {
        if (stop.starts_with(end)) return true;
      }
      return false;
    };
    while (begin < held_.size() && !begins_a_stop(std::string_view(held_).substr(begin))) ++begin;
    shown.append(held_, 0, begin);
    held_.erase(0, begin);
  }
  return shown;
}

std::string StopStrings::finish() {
  std::string rest;
  rest.swap(held_);
  return rest;
}

}  // namespace dsmoe::infer
