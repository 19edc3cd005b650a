// The embedded corpus as training data: its tokenizer, and how much of it a run reads.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "model/config.h"
#include "train/run_tokenizer.h"

namespace dsmoe::train {

// RUN/tokenizer.json, trained on the corpus of this seed, not on request.data, unless it is there
// already. Throws DataInterrupted.
void make_demo_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                         uint64_t seed, ThreadPool& pool);

// Documents for about one pass of so many tokens, so that what is learned is the language and not
// the text.
uint64_t num_demo_documents(int64_t num_tokens, int64_t tokens_per_document);

}  // namespace dsmoe::train
