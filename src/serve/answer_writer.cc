// One writer per API.
#include "serve/answer_writer.h"

#include "serve/embeddings_writer.h"
#include "serve/messages_writer.h"
#include "serve/openai_writer.h"
#include "serve/responses_writer.h"

namespace dsmoe::serve {

std::unique_ptr<AnswerWriter> make_writer(AnswerFrame frame) {
  switch (frame.request.endpoint) {
    case Endpoint::responses:
      return std::make_unique<ResponsesWriter>(std::move(frame));
    case Endpoint::messages:
      return std::make_unique<MessagesWriter>(std::move(frame));
    case Endpoint::embeddings:
      return std::make_unique<EmbeddingsWriter>(std::move(frame));
    default:
      return std::make_unique<OpenAiWriter>(std::move(frame));
  }
}

OrderedJson error_json(Endpoint endpoint, const ApiError& error, const std::string& request_id) {
  return endpoint == Endpoint::messages ? messages_error(error, request_id) : error_body(error);
}

}  // namespace dsmoe::serve
