// Sizes of the embedded corpus.
#include "train/demo_data.h"

#include <algorithm>

#include "data/demo_corpus.h"
#include "data/documents.h"

namespace dsmoe::train {
namespace {

constexpr uint64_t kTokenizerDocuments = 5000;
constexpr uint64_t kMinDocuments = 2000;    // fewer would leave the trigram model little to count
constexpr uint64_t kMaxDocuments = 100000;  // memory and the time to make them; then epochs

}  // namespace

void make_demo_tokenizer(const NewTokenizer& request, const model::ModelConfig& config,
                         uint64_t seed, ThreadPool& pool) {
  const auto count = [&](text::WordCounts& counts) {
    const data::DemoCorpus corpus(seed);
    std::string text;
    for (uint64_t i = 0; i < kTokenizerDocuments; ++i) {
      text += corpus.document(i).text;
      text += data::kEndOfText;
    }
    counts.add_text(text, pool);
  };
  ensure_tokenizer(request, config, {.text_key = seed, .count = count});
}

uint64_t num_demo_documents(int64_t num_tokens, int64_t tokens_per_document) {
  return std::clamp(static_cast<uint64_t>(num_tokens / tokens_per_document), kMinDocuments,
                    kMaxDocuments);
}

}  // namespace dsmoe::train
