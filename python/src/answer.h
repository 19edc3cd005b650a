// One answer of the batch engine on its way to whoever asked: text and tokens as they come.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "commands/text_side.h"
#include "infer/engine/engine_request.h"
#include "infer/sequence/routes.h"
#include "infer/sequence/stop.h"

namespace dsmoe::python {

// Filled by the engine's thread, read by one other.
class Answer : public infer::RequestSink {
 public:
  // `text` must outlive it.
  Answer(const app::TextSide& text, std::vector<std::string> stops);

  void on_prompt_score(int64_t, const infer::TokenScore&) override {}
  void on_routes(const infer::RouteRows& rows) override;
  infer::Next on_token(int32_t token, const infer::TokenScore* score) override;
  void on_finish(const infer::Finish& finish) override;
  void on_error(ErrorKind kind, const std::string& message) override;

  enum class State { waits, has_text, ended };
  // Waits for text, but no longer than `seconds`, and takes what there is. Throws what ended the
  // answer.
  State take(double seconds, std::string& piece);

  // Once it has ended.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::string& stop() const { return stops_.found(); }
  infer::Finish finish() const { return *finish_; }
  const infer::Routes& routes() const { return routes_; }

 private:
  struct Failure {
    ErrorKind kind;
    std::string message;
  };
  void show(const std::string& piece);
  void end(std::optional<infer::Finish> finish, std::optional<Failure> failure);

  // Of the engine's thread until the end.
  app::TextSide::Stream stream_;
  infer::StopStrings stops_;
  std::vector<int32_t> tokens_;
  infer::Routes routes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string ready_;
  std::optional<infer::Finish> finish_;
  std::optional<Failure> failure_;
};

}  // namespace dsmoe::python
