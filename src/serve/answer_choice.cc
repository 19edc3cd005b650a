// Text -> text and calls.
#include "serve/answer_choice.h"

namespace dsmoe::serve {

bool AnswerChoice::was_cut() const {
  using infer::FinishReason;
  const FinishReason reason = all.finish->reason;
  if (reason == FinishReason::closed) return !closes_text && num_calls() == 0;
  return reason != FinishReason::stop_token && reason != FinishReason::stopped &&
         reason != FinishReason::complete;
}

bool AnswerChoice::was_closed() const {
  return all.finish->reason == infer::FinishReason::closed && !was_cut();
}

std::vector<text::CallEvent> AnswerChoice::read(const ChoiceDelta& delta) {
  const std::string said = reasoning ? without_thoughts(delta) : delta.text;
  if (!calls) {
    if (said.empty()) return {};
    return {{text::CallEvent::Kind::text, said}};
  }
  std::vector<text::CallEvent> events = calls->push(said);
  if (delta.finish) {
    for (text::CallEvent& event : calls->finish()) events.push_back(std::move(event));
  }
  return events;
}

std::string AnswerChoice::without_thoughts(const ChoiceDelta& delta) {
  std::string said;
  const auto take = [&](const text::SplitAnswer& part) {
    thoughts += part.reasoning;
    said += part.text;
  };
  take(reasoning->push(delta.text));
  if (delta.finish) take(reasoning->finish());
  return said;
}

}  // namespace dsmoe::serve
