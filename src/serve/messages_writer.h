// Answers of /v1/messages: blocks of text and of calls, as Anthropic's API has them.
#pragma once

#include "base/json.h"
#include "serve/answer_writer.h"

namespace dsmoe::serve {

class MessagesWriter : public AnswerWriter {
 public:
  explicit MessagesWriter(AnswerFrame frame) : frame_(std::move(frame)) {}

  Pieces begin(int64_t num_choices, const Usage& usage) override;
  void add(AnswerChoice& choice, Pieces& pieces) override;
  Pieces end(const Usage& usage) override;
  Pieces fail(const ApiError& error) override;
  std::string choice(AnswerChoice& choice) override;
  std::string whole(const Pieces& choices, const Usage& usage) override;

 private:
  OrderedJson message(const Usage& usage) const;
  void begin_block(const OrderedJson& block, Pieces& pieces);
  void end_block(Pieces& pieces);
  std::string call_id(int64_t call_idx) const;
  void keep_ending(const AnswerChoice& choice);

  AnswerFrame frame_;
  int64_t num_blocks_ = 0, num_calls_ = 0;
  bool is_open_ = false;  // a block
  bool is_text_ = false;  // and which
  OrderedJson stop_reason_, stop_sequence_;
  bool was_closed_ = false;  // by max_tokens
};

// {"type": "error", "error": {"type", "message"}, "request_id"}
OrderedJson messages_error(const ApiError& error, const std::string& request_id);

}  // namespace dsmoe::serve
