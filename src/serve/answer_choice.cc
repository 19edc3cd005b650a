// Text -> text and calls.
#include "serve/answer_choice.h"

namespace dsmoe::serve {

std::vector<text::CallEvent> AnswerChoice::read(const ChoiceDelta& delta) {
  if (!calls) {
    if (delta.text.empty()) return {};
    return {{text::CallEvent::Kind::text, delta.text}};
  }
  std::vector<text::CallEvent> events = calls->push(delta.text);
  if (delta.finish) {
    for (text::CallEvent& event : calls->finish()) events.push_back(std::move(event));
  }
  return events;
}

}  // namespace dsmoe::serve
