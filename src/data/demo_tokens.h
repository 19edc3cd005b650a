// Documents of the demo corpus as tokens, with the floor of the loss on them.
#pragma once

#include <cstdint>

#include "data/corpus_builder.h"
#include "data/demo_corpus.h"
#include "data/token_corpus.h"

namespace dsmoe::data {

struct DemoTokens {
  MemoryCorpus corpus;      // sources(): the domains, in the order of kDemoDomains
  double nats = 0;          // of all documents
  int64_t num_targets = 0;  // tokens after the first of each document
  // What a perfect model would need on average. Exact if the encoder has a bos.
  double floor() const { return nats / static_cast<double>(num_targets); }
};

struct DemoRange {
  uint64_t first = 0;  // kDemoValidation for validation
  uint64_t count = 0;
};

DemoTokens encode_demo(const DemoCorpus& demo, DemoRange range, const Encoder& encoder);

}  // namespace dsmoe::data
