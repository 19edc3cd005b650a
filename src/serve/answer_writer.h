// How one route writes an answer: the pieces of a stream, or one body.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "serve/answer_choice.h"
#include "serve/api_error.h"

namespace dsmoe::serve {

// What all choices of an answer share.
struct AnswerFrame {
  const ServedModel& model;
  const CompletionRequest& request;
  std::string request_id;
  int64_t created = 0;  // seconds since 1970
  uint64_t seed = 0;
  int64_t top_k = 0;  // experts per token
};

struct Usage {
  int64_t prompt = 0, answer = 0;
  int64_t reused = 0;  // of the prompt, found in the prefix cache
};

// Used by one thread at a time: the I/O thread, or the worker where a piece is long.
class AnswerWriter {
 public:
  using Pieces = std::vector<std::string>;

  virtual ~AnswerWriter() = default;
  // A stream: its first pieces; what a choice holds, which is taken out of it; its last pieces, or
  // instead of them an error.
  virtual Pieces begin(int64_t num_choices, const Usage& usage) = 0;
  virtual void add(AnswerChoice& choice, Pieces& pieces) = 0;
  virtual Pieces end(const Usage& usage) = 0;
  virtual Pieces fail(const ApiError& error) = 0;
  // A plain answer: each choice alone, as one may be long, and then all of it.
  virtual std::string choice(AnswerChoice& choice) = 0;
  virtual std::string whole(const Pieces& choices, const Usage& usage) = 0;
};

// The one for the request's endpoint.
std::unique_ptr<AnswerWriter> make_writer(AnswerFrame frame);
// An error outside of a stream.
OrderedJson error_json(Endpoint endpoint, const ApiError& error, const std::string& request_id);

}  // namespace dsmoe::serve
