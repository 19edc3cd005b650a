// Answers of /v1/completions and /v1/chat/completions.
#pragma once

#include "base/json.h"
#include "serve/answer_writer.h"

namespace dsmoe::serve {

class OpenAiWriter : public AnswerWriter {
 public:
  explicit OpenAiWriter(AnswerFrame frame);

  Pieces begin(int64_t num_choices, const Usage& usage) override;
  void add(AnswerChoice& choice, Pieces& pieces) override;
  Pieces end(const Usage& usage) override;
  Pieces fail(const ApiError& error) override;
  std::string choice(AnswerChoice& choice) override;
  std::string whole(const Pieces& choices, const Usage& usage) override;

 private:
  std::string chunk(const OrderedJson& choice);
  std::string chunk_with_prompt(const OrderedJson& json, const AnswerChoice& choice) const;
  void add_chunks(AnswerChoice& choice, const ChoiceDelta& delta, Pieces& pieces);
  // Everything a choice says about one delta, and nothing about how it ended.
  OrderedJson render(AnswerChoice& choice, const ChoiceDelta& delta,
                     std::span<const text::CallEvent> events);
  OrderedJson render_delta(AnswerChoice& choice, std::span<const text::CallEvent> events);
  OrderedJson render_message(AnswerChoice& choice, std::span<const text::CallEvent> events);
  std::string call_id(const AnswerChoice& choice, int64_t call_idx) const;
  OrderedJson render_logprobs(AnswerChoice& choice, const ChoiceDelta& delta) const;
  OrderedJson render_prompt_logprobs(const AnswerChoice& choice) const;
  void render_routes(OrderedJson& json, AnswerChoice& choice, const ChoiceDelta& delta) const;
  bool has_content(const ChoiceDelta& delta) const;
  const char* chunk_object() const;
  OrderedJson body(const char* object) const;
  const CompletionRequest& request() const { return frame_.request; }
  bool is_chat() const { return request().endpoint == Endpoint::chat; }

  AnswerFrame frame_;
  std::string id_;
  OrderedJson beside_choices_ = OrderedJson::object();  // of a chat: what vLLM says once
  std::string chunk_begin_, chunk_end_;                 // around the choice of a chunk
};

}  // namespace dsmoe::serve
