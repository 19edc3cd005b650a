// A model, the threads it runs on, its tokenizer, and the engine in which its answers share steps.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "answer.h"
#include "commands/eval_stream.h"
#include "commands/options.h"
#include "commands/text_side.h"
#include "infer/engine/engine.h"
#include "text/chat_template.h"

namespace dsmoe::python {

struct LoadOptions {
  std::string path;     // a model folder, or a run of training
  std::string device;   // cpu, cuda or auto
  std::string dtype;    // bf16, fp32, or empty: the config's
  std::string weights;  // int8, int4, or empty: as they are stored
  int64_t context = 0;
  int threads = 0;
  bool cache = false;
  int64_t max_batch = 16;
};

class LoadedModel {
 public:
  explicit LoadedModel(const LoadOptions& options);

  const std::string& folder() const { return options_.model; }
  const model::Model& model() const { return *model_; }
  const kernels::Context& context() const { return machine_.context(); }
  int num_threads() const { return machine_.num_threads(); }
  const app::TextSide& text() const { return *text_; }
  const std::optional<text::ChatTemplate>& chat_template() const { return chat_template_; }

  // The one in which answers of all threads meet; its memory is taken at the first call.
  infer::Engine& engine();

 private:
  app::CommonOptions options_;
  int64_t max_batch_;
  app::Engine machine_;
  std::unique_ptr<app::TextSide> text_;
  std::optional<text::ChatTemplate> chat_template_;
  std::unique_ptr<model::Model> model_;
  std::mutex mutex_;
  std::unique_ptr<infer::Engine> engine_;
};

// A prompt and how to go on with it.
struct AnswerRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;  // 0: as the context allows
  infer::SamplerOptions sampler;
  uint64_t seed = 0;
  uint32_t choice = 0;
  std::vector<std::string> stops;
  bool ignore_eos = false;
  int64_t experts_per_token = 0;
  bool wants_routes = false;
  std::vector<int32_t> replayed;
  std::optional<std::string> schema, pattern;
  std::vector<std::string> choices;
};

// An answer that is being written; given up with its last owner.
class RunningAnswer {
 public:
  RunningAnswer(LoadedModel& model, AnswerRequest request);
  ~RunningAnswer();
  RunningAnswer(const RunningAnswer&) = delete;
  RunningAnswer& operator=(const RunningAnswer&) = delete;

  Answer& answer() { return *answer_; }
  void cancel();
  int64_t prompt_tokens() const { return prompt_tokens_; }

 private:
  infer::Engine& engine_;
  std::shared_ptr<Answer> answer_;
  int64_t prompt_tokens_;
  infer::Engine::Id id_ = 0;
};

}  // namespace dsmoe::python
