// Documents with a label each, a domain or a file: what probes and reports let a model read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/corpus_builder.h"
#include "data/token_corpus.h"

namespace dsmoe::report {

struct LabelledText {
  std::string title;  // for people: "embedded corpus"
  std::vector<std::string> labels;
  struct Document {
    std::vector<int32_t> tokens;
    int32_t label = 0;
  };
  std::vector<Document> documents;

  int64_t num_tokens() const;
};

struct TextLimits {
  int64_t max_tokens = 0;  // in all, shared evenly by the labels
  int64_t context = 0;     // longer documents are cut into pieces of so many tokens
};

// Validation documents of the embedded corpus, labelled by domain.
LabelledText embedded_text(const data::Encoder& encoder, const TextLimits& limits);

// The first documents of each source that --data names (data/data_files.h), labelled by its name.
// Throws Error(usage) for weights, Error(input) when none holds two tokens.
LabelledText text_of_files(const std::vector<std::string>& words, const data::Encoder& encoder,
                           const TextLimits& limits);

// The first documents of each source.
LabelledText text_of_corpus(const data::TokenCorpus& corpus, const TextLimits& limits);

}  // namespace dsmoe::report
