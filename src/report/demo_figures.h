// What the demo measures of the model it trained.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "data/demo_tokens.h"
#include "infer/measure/specialisation.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::report {

struct DemoFigures {
  int64_t valid_documents = 0, valid_targets = 0;
  double trigram = 0, loss = 0, floor = 0;  // nats per target of the validation documents
  int64_t additions_right = 0, additions = 0;
  struct Sample {
    data::DemoDomain domain{};
    std::string prompt, answer;
  };
  static constexpr double kSampleTemperature = 0.7;
  uint64_t sample_seed = 0;
  std::vector<Sample> samples;
  std::vector<infer::LayerRouting> routing;    // of the validation documents
  std::vector<infer::LayerRouting> untrained;  // by the weights training began with

  // 0: no better than the trigram model, 1: perfect.
  double gap_closed() const { return (trigram - loss) / (trigram - floor); }
};

// The highest mutual information between domain and strongest expert, and the layer it is in.
struct BestLayer {
  int64_t layer = 0;
  double bits = 0;
};
BestLayer best_layer(const std::vector<infer::LayerRouting>& routing);

struct DemoSubject {
  const kernels::Context& context;
  const model::Model& trained;
  const model::Model& untrained;
  const text::Tokenizer& tokenizer;
  const data::DemoCorpus& corpus;
  const data::DemoTokens& training;
  const data::DemoTokens& validation;
  uint64_t seed = 0;  // of the samples
  const std::atomic<bool>* cancelled = nullptr;
};

// Throws Error(resource) when cancelled.
DemoFigures measure_demo(const DemoSubject& subject);

}  // namespace dsmoe::report
