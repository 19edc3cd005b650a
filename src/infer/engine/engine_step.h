// One forward pass over parts of sequences, and what follows from it alone: routes, scores, tokens.
// It changes nothing of a sequence that counts but its pages, so that a step can be taken back.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "infer/engine/engine_sequence.h"
#include "infer/sequence/next_tokens.h"
#include "infer/sequence/routes.h"
#include "kernels/elements.h"
#include "model/language_model.h"

namespace dsmoe::infer {

class EngineStep {
 public:
  // `beat` is called at least once per layer, on a GPU once per step.
  EngineStep(const kernels::Context& context, const model::Model& model, attention::KvCache& cache,
             const model::ForwardPass::Limits& limits, std::function<void()> beat);

  // A row of hidden states whose logits are wanted: to choose a token, or to score the one that
  // followed.
  struct Row {
    EngineSequence* sequence;
    int64_t hidden_row;
    int64_t scored_position;  // of the prompt; -1: choose a token
    int32_t token = -1;       // chosen
    bool is_over = false;     // the constraint allows no token
    TokenScore score;
    std::string error;
  };
  // What a step gave; nothing of it left the device's memory before all of it was there.
  struct Result {
    std::vector<int32_t> tokens;  // of all parts, one after the other
    Routes routes;                // of those tokens
    std::vector<Row> rows;
    std::vector<std::byte> hidden;  // [tokens, hidden], where some sequence pools them
    tensor::DType hidden_type = tensor::DType::F32;

    double hidden_value(int64_t token, std::size_t i, std::size_t width) const {
      return kernels::read_element(
          hidden.data(), hidden_type,
          static_cast<int64_t>(static_cast<std::size_t>(token) * width + i));
    }
  };
  // The result holds until the next call. Throws model::BadScores, std::bad_alloc and Error;
  // was_forwarded() says how far it came.
  Result& run(std::span<const EnginePart> parts);
  bool was_forwarded() const { return was_forwarded_; }
  // What the last run() left unread does not count.
  void forget() { pass_.forget(); }

 private:
  struct RoutingInput {
    std::vector<int32_t> experts_of_token;
    std::vector<int32_t> replayed;  // [MoE layers, tokens, top_k]
  };
  tensor::TensorView forward(std::span<const EnginePart> parts, int64_t top_k);
  RoutingInput routing_input(std::span<const EnginePart> parts, int64_t top_k) const;
  static std::vector<Row> wanted_rows(std::span<const EnginePart> parts);
  static DrawKey draw_key(const Row& row);
  void read_hidden(const tensor::TensorView& hidden, std::span<const EnginePart> parts);
  void compute_rows(const tensor::TensorView& hidden);
  void choose_tokens(const tensor::TensorView& hidden, std::span<Row> rows);
  void finish_rows(std::span<Row> rows);
  void finish_row(Row& row, std::span<float> logits) const;

  kernels::Context context_;
  std::function<void()> beat_;
  int64_t vocabulary_, num_moe_layers_;
  model::ForwardPass pass_;
  NextTokens next_;
  Result result_;
  bool was_forwarded_ = false;
};

}  // namespace dsmoe::infer
