// Answers of /v1/embeddings.
#pragma once

#include "serve/answer_writer.h"

namespace dsmoe::serve {

class EmbeddingsWriter : public AnswerWriter {
 public:
  explicit EmbeddingsWriter(AnswerFrame frame) : frame_(std::move(frame)) {}

  // There are no streams of embeddings.
  Pieces begin(int64_t, const Usage&) override { return {}; }
  void add(AnswerChoice&, Pieces&) override {}
  Pieces end(const Usage&) override { return {}; }
  Pieces fail(const ApiError&) override { return {}; }
  std::string choice(AnswerChoice& choice) override;
  std::string whole(const Pieces& choices, const Usage& usage) override;

 private:
  AnswerFrame frame_;
};

}  // namespace dsmoe::serve
