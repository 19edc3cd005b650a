// Answers of /v1/responses: output items, and OpenAI's events about them.
#pragma once

#include "base/json.h"
#include "serve/answer_writer.h"

namespace dsmoe::serve {

class ResponsesWriter : public AnswerWriter {
 public:
  explicit ResponsesWriter(AnswerFrame frame) : frame_(std::move(frame)) {}

  Pieces begin(int64_t num_choices, const Usage& usage) override;
  void add(AnswerChoice& choice, Pieces& pieces) override;
  Pieces end(const Usage& usage) override;
  Pieces fail(const ApiError& error) override;
  std::string choice(AnswerChoice& choice) override;
  std::string whole(const Pieces& choices, const Usage& usage) override;

 private:
  OrderedJson response(const char* status, const Usage* usage) const;
  std::string event(const char* type, OrderedJson data);
  std::string item_event(const char* type, OrderedJson data);
  void take(const text::CallEvent& event, Pieces& pieces);
  void begin_text(Pieces& pieces);
  void begin_call(const std::string& name, Pieces& pieces);
  void end_item(const char* status, Pieces& pieces);
  void end_text(Pieces& pieces);

  AnswerFrame frame_;
  int64_t sequence_number_ = 0;
  OrderedJson output_ = OrderedJson::array();  // items that have ended
  OrderedJson item_;                           // the one that grows; null: none
  bool was_cut_ = false, was_closed_ = false;
};

}  // namespace dsmoe::serve
