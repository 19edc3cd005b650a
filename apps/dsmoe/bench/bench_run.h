// One measured run of a model: a prompt read, or tokens generated for several sequences at once;
// and what it must cost at least.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/language_model.h"

namespace dsmoe::app {

struct BenchTest {
  enum class Kind { prompt, generate };
  Kind kind = Kind::prompt;
  int64_t tokens = 0;  // of each sequence
  int64_t batch = 1;   // sequences

  std::string name() const;  // "pp512", "tg64 x 8"
};

// The least a run of a test can do: bytes of weights and keys it must read, and multiplications.
struct BenchCost {
  double bytes = 0;
  double flops = 0;
  double experts_per_layer = 0;  // distinct ones that a step of the test reads
};

class BenchRun {
 public:
  BenchRun(const kernels::Context& context, const model::Model& model,
           const std::vector<BenchTest>& tests);

  // Seconds. Prompts start from an empty cache and end with the logits of the last token; generated
  // tokens start from an empty cache, each step ends when the most likely tokens are on the host.
  // What goes in is random, so that the sequences of a batch route apart.
  double run(const BenchTest& test);
  // Counts the experts that one pass of the test takes, then adds up.
  BenchCost cost(const BenchTest& test);

 private:
  void pass(std::vector<attention::KvSequence>& sequences, int64_t tokens,
            model::BlockObserver* observer);
  void finish(int64_t rows);

  kernels::Context context_;
  const model::Model& model_;
  int64_t vocabulary_;
  attention::KvCache cache_;
  model::ForwardPass pass_;
  tensor::Arena arena_;
  tensor::TensorView logits_;  // [rows, vocabulary]
  tensor::TensorView best_;    // [rows] I32
  tensor::TensorView hidden_;  // of the last pass
  std::vector<int32_t> tokens_, chosen_;
  Rng rng_{.seed = 1, .purpose = RngPurpose::test};
  uint64_t drawn_ = 0;
};

// Bytes of all weights as they lie in memory, the embedding included.
double weight_bytes(const model::Model& model);

}  // namespace dsmoe::app
