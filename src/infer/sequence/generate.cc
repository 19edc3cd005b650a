// The loop of generation, and its timing.
#include "infer/sequence/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "infer/sequence/guide.h"

namespace dsmoe::infer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double rate(int64_t tokens, double seconds) {
  return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

bool is_set(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(); }

// The next token: on the device where the logits alone decide, else by the sampler, which also says
// what is wrong with logits that are not finite.
int32_t choose(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
               std::span<const int32_t> answer, std::span<const uint64_t> allowed,
               const GenerateOptions& options) {
  const DrawKey key{.seed = options.seed,
                    .choice = options.choice,
                    .position = static_cast<int64_t>(session.tokens().size())};
  if (needs_logits_alone(options.sampler) && allowed.empty()) {
    const int32_t token = session.choose(sample_rule(options.sampler, key));
    if (token >= 0) return token;
  }
  return sampler.sample({.logits = session.logits(),
                         .prompt = prompt,
                         .answer = answer,
                         .key = key,
                         .allowed = allowed});
}

// How an answer ended that is whole: perhaps it had to be.
FinishReason ended(FinishReason reason, const Guide& guide) {
  return guide.was_narrowed() ? FinishReason::closed : reason;
}

FinishReason decode(Session& session, std::span<const int32_t> prompt,
                    const GenerateOptions& options, FunctionRef<Next(int32_t token)> on_token,
                    std::vector<int32_t>& answer) {
  Sampler sampler(options.sampler, session.model().config.vocab_size);
  std::optional<Guide> guide;
  if (options.constraint) guide.emplace(options.constraint, options.stop_ids);
  // One token of an answer is never computed.
  const int64_t room = session.max_positions() + 1 - static_cast<int64_t>(prompt.size());
  const int64_t most = options.max_tokens > 0 ? std::min(options.max_tokens, room) : room;
  for (;;) {
    if (is_set(options.cancelled)) return FinishReason::cancelled;
    const int64_t left = most - static_cast<int64_t>(answer.size());
    if (guide && guide->must_end()) return ended(FinishReason::complete, *guide);
    if (guide && left == 0 && guide->may_end()) return FinishReason::closed;
    if (options.max_tokens > 0 && static_cast<int64_t>(answer.size()) == options.max_tokens) {
      return FinishReason::length;
    }
    if (!answer.empty()) {
      // The token chosen last is computed only when one more is wanted.
      if (static_cast<int64_t>(session.tokens().size()) == session.max_positions()) {
        return FinishReason::context;
      }
      session.append(answer.back());
    }
    std::span<const uint64_t> allowed;
    if (guide) {
      allowed = guide->allowed(left, Guide::MayStop::yes);
      if (allowed.empty()) return FinishReason::complete;
    }
    const int32_t token = choose(session, sampler, prompt, answer, allowed, options);
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), token) !=
        options.stop_ids.end()) {
      return guide ? ended(FinishReason::stop_token, *guide) : FinishReason::stop_token;
    }
    answer.push_back(token);
    if (guide) guide->take(token);
    if (on_token(token) == Next::stop) return FinishReason::stopped;
  }
}

}  // namespace

std::string_view name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop_token:
    case FinishReason::stopped:
    case FinishReason::complete:
    case FinishReason::closed:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::context:
      return "context";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "";
}

double Generation::prompt_rate() const {
  return rate(prompt_tokens - reused_tokens, prompt_seconds);
}
double Generation::answer_rate() const { return rate(decoded_tokens, answer_seconds); }

Generation generate(Session& session, std::span<const int32_t> prompt,
                    const GenerateOptions& options, FunctionRef<Next(int32_t token)> on_token) {
  check(options.sampler, session.model().config.vocab_size);
  Generation result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  const Clock::time_point start = Clock::now();
  const Outcome outcome = session.assign(prompt, options.cancelled);
  result.reused_tokens = session.num_reused();
  result.prompt_seconds = seconds_since(start);
  if (outcome == Outcome::cancelled) {
    result.reason = FinishReason::cancelled;
    return result;
  }
  const Clock::time_point answer_start = Clock::now();
  result.reason = decode(session, prompt, options, on_token, result.tokens);
  result.answer_seconds = seconds_since(answer_start);
  result.decoded_tokens = static_cast<int64_t>(session.tokens().size() - prompt.size());
  return result;
}

}  // namespace dsmoe::infer
