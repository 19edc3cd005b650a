// The Prometheus text format.
#include "serve/metrics.h"

#include <fmt/core.h>

namespace dsmoe::serve {
namespace {

std::string head(const std::string& name, const char* type, const std::string& help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string single(const std::string& name, const char* type, const std::string& help,
                   int64_t value) {
  return head(name, type, help) + fmt::format("{} {}\n", name, value);
}

std::string engine_text(const infer::EngineStats& stats, bool is_alive) {
  std::string text;
  text +=
      single("dsmoe_engine_up", "gauge", "1 while the engine's thread is alive", is_alive ? 1 : 0);
  text += single("dsmoe_sequences_running", "gauge", "Sequences in the batch", stats.running);
  text += single("dsmoe_sequences_waiting", "gauge", "Sequences in the queue", stats.waiting);
  text += single("dsmoe_prompt_tokens_total", "counter", "Prompt tokens of admitted sequences",
                 stats.prompt_tokens);
  text += single("dsmoe_prompt_tokens_reused_total", "counter",
                 "Prompt tokens found in the prefix cache", stats.reused_tokens);
  text += single("dsmoe_answer_tokens_total", "counter", "Tokens chosen", stats.answer_tokens);
  text += single("dsmoe_forwarded_tokens_total", "counter", "Tokens through the model",
                 stats.forwarded_tokens);
  text += single("dsmoe_steps_total", "counter", "Forward passes", stats.steps);
  text += head("dsmoe_longest_step_seconds", "gauge", "The longest forward pass since start") +
          fmt::format("dsmoe_longest_step_seconds {}\n", stats.longest_step_seconds);
  text += single("dsmoe_preemptions_total", "counter",
                 "Sequences that gave their pages back and started again", stats.preemptions);
  text += head("dsmoe_kv_pages", "gauge", "Pages of the KV cache");
  text += fmt::format("dsmoe_kv_pages{{state=\"all\"}} {}\n", stats.pages);
  text += fmt::format("dsmoe_kv_pages{{state=\"free\"}} {}\n", stats.free_pages);
  text += fmt::format("dsmoe_kv_pages{{state=\"cached\"}} {}\n", stats.cached_pages);
  return text;
}

}  // namespace

void Histogram::add(double seconds) {
  std::size_t bucket = 0;
  while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_nanoseconds_.fetch_add(static_cast<int64_t>(seconds * 1e9), std::memory_order_relaxed);
}

std::string Histogram::text(const std::string& name, const std::string& help) const {
  std::string text = head(name, "histogram", help);
  int64_t sum = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    sum += counts_[i].load(std::memory_order_relaxed);
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], sum);
  }
  sum += counts_[kBounds.size()].load(std::memory_order_relaxed);
  text += fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, sum, name,
                      static_cast<double>(sum_nanoseconds_.load(std::memory_order_relaxed)) * 1e-9,
                      name, sum);
  return text;
}

void Metrics::count_request(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{route, status}];
}

std::string Metrics::text(infer::Engine& engine) const {
  std::string text = engine_text(engine.stats(), engine.is_alive());
  text += head("dsmoe_requests_total", "counter", "Requests answered");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : requests_) {
      text += fmt::format("dsmoe_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first,
                          key.second, count);
    }
  }
  text += single("dsmoe_requests_preparing", "gauge",
                 "Large requests that are read, or wait for it", requests_preparing.load());
  text += single("dsmoe_requests_running", "gauge", "Completion requests in flight",
                 requests_running.load());
  text += single("dsmoe_connections", "gauge", "Open connections", connections.load());
  text += single("dsmoe_clients_gone_total", "counter", "Clients that left before their answer",
                 clients_gone.load());
  text += first_token.text("dsmoe_first_token_seconds", "From the request to its first token");
  text += between_tokens.text("dsmoe_between_tokens_seconds", "From one token to the next");
  text += request.text("dsmoe_request_seconds", "From the request to the end of its answer");
  text += head("dsmoe_expert_tokens_total", "counter", "Tokens that took the expert");
  for (const auto& layer : engine.load().totals()) {
    for (std::size_t e = 0; e < layer.chosen.size(); ++e) {
      text += fmt::format("dsmoe_expert_tokens_total{{layer=\"{}\",expert=\"{}\"}} {}\n",
                          layer.layer, e, layer.chosen[e]);
    }
  }
  return text;
}

}  // namespace dsmoe::serve
