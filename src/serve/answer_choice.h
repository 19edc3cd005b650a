// One choice of an answer: what the engine said about it that is not written yet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "infer/engine/engine_request.h"
#include "serve/completion_prepare.h"
#include "serve/served_model.h"
#include "text/reasoning.h"
#include "text/tools/call_reader.h"

namespace dsmoe::serve {

// Routes of consecutive tokens, as the engine gave them.
struct RouteRecord {
  int64_t first_position = 0;
  int64_t num_tokens = 0;
  std::vector<int32_t> index;  // [tokens, MoE layers, K]
  std::vector<float> gate;
};

// What one choice gained since it was last looked at.
struct ChoiceDelta {
  std::vector<infer::TokenScore> prompt_scores;  // of positions 1, 2, ...
  std::vector<int32_t> tokens;
  std::vector<infer::TokenScore> scores;  // of `tokens`, when wanted
  std::string text;
  RouteRecord routes;
  std::vector<float> embedding;
  std::optional<infer::Finish> finish;
  std::string stop_found;  // the stop string that ended it; empty: none did
  std::optional<ErrorKind> error;
  std::string error_message;

  bool ended() const { return finish.has_value() || error.has_value(); }
};

// What a writer keeps about a choice from one piece to the next.
struct AnswerChoice {
  AnswerChoice(const ServedModel& model, int64_t its_index,
               std::shared_ptr<const EncodedPrompt> its_prompt, bool closes)
      : index(its_index),
        closes_text(closes),
        prompt(std::move(its_prompt)),
        offset_text(model, text::SkipSpecial::yes),
        route_text(model, text::SkipSpecial::no) {}

  // What a delta says: its text alone, or text and calls where the answer may call tools. What it
  // thinks goes to `thoughts`.
  std::vector<text::CallEvent> read(const ChoiceDelta& delta);
  int64_t num_calls() const { return calls ? calls->num_calls() : 0; }
  // Of a choice that has ended, while `all` has its end. A text that might have been calls is cut
  // by a limit like any other.
  bool was_cut() const;
  // It is whole because the limit closed it: without the limit there might have been more.
  bool was_closed() const;

  int64_t index;
  bool closes_text;  // an answer without calls has a form that a limit can close
  std::shared_ptr<const EncodedPrompt> prompt;  // shared by all its answers
  ChoiceDelta all;                              // what has come and is not written
  bool has_begun = false;       // something was written: the prompt is not shown again
  std::vector<int32_t> answer;  // its tokens so far, to name those of routes
  TextStream offset_text;       // text_offset counts its characters
  int64_t offset = 0;
  TextStream route_text;
  int64_t calls_written = 0;
  std::unique_ptr<text::CallReader> calls;           // null: the answer may call no tools
  std::unique_ptr<text::ReasoningReader> reasoning;  // null: thoughts are not told apart
  std::string thoughts;                              // read and not written

 private:
  std::string without_thoughts(const ChoiceDelta& delta);
};

}  // namespace dsmoe::serve
