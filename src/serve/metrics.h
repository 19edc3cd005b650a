// Counters and histograms for Prometheus.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "infer/engine/engine.h"

namespace dsmoe::serve {

// Seconds; buckets from a millisecond to a minute.
class Histogram {
 public:
  void add(double seconds);
  // Lines of the text format under `name`.
  std::string text(const std::string& name, const std::string& help) const;

  static constexpr std::array<double, 14> kBounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                  0.25,  0.5,    1,     2.5,  5,     10,   60};

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> counts_{};
  std::atomic<int64_t> sum_nanoseconds_{0};
};

struct Metrics {
  Histogram first_token, between_tokens, request;
  std::atomic<int64_t> connections{0};
  std::atomic<int64_t> requests_preparing{0};  // with the worker
  std::atomic<int64_t> requests_running{0};
  std::atomic<int64_t> clients_gone{0};

  void count_request(const std::string& route, int status);
  std::string text(infer::Engine& engine) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
};

}  // namespace dsmoe::serve
