// Which tokens are for training and which for validation.
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_corpus.h"

namespace dsmoe::data {

struct SplitOptions {
  double fraction = 0.05;  // of validation; 0: everything is for training
  uint64_t seed = 0;
};

// Tokens [begin, end) of a document.
struct TokenRange {
  int64_t begin = 0, end = 0;
  int64_t length() const { return end - begin; }
};

// By document: a document goes to validation by a hash of (seed, its tokens), so copies of one
// document never land on both sides, and adding files does not move the others. With fewer than 20
// documents, or when the hash puts every document on one side, the last `fraction` of all tokens is
// for validation: one document is cut, and neither part sees the other.
class DocumentSplit {
 public:
  // The corpus must outlive the split.
  DocumentSplit(const TokenCorpus& corpus, SplitOptions options);

  TokenRange training(int64_t document) const;
  TokenRange validation(int64_t document) const;
  bool by_document() const { return by_document_; }
  const TokenCorpus& corpus() const { return corpus_; }

 private:
  void choose_documents();
  void cut_by_tokens();

  const TokenCorpus& corpus_;
  SplitOptions options_;
  bool by_document_ = true;
  std::vector<bool> chosen_;  // per document: for validation; empty when none is
  // Without by_document_: everything before token cut_offset_ of document cut_document_ is
  // training.
  int64_t cut_document_ = 0, cut_offset_ = 0;
};

}  // namespace dsmoe::data
