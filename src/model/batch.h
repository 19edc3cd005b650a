// What ops need to know about one batch, on the device: one layout for inference and training.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "tensor/arena.h"

namespace dsmoe::model {

// Sequences are the units of routing and of gradient sums (packed rows in training), documents
// those of attention; in inference they are the same.
struct BatchViews {
  tensor::TensorView tokens;            // [tokens] I32
  tensor::TensorView position;          // [tokens] I32, from the start of the document
  tensor::TensorView kv_slot;           // [tokens] I32
  tensor::TensorView experts_of_token;  // [tokens] I32, or absent
  tensor::TensorView is_counted;        // [tokens] I32, in training only: the token's target counts
  tensor::TensorView sequence_starts;   // [sequences + 1] I32
  tensor::TensorView document_starts;   // [documents + 1] I32
  tensor::TensorView page_table;        // [documents, max_pages] I32
  tensor::TensorView token_range;       // [2] I32
};

// The memory of a batch on the device and beside it on the host; nothing is allocated after it is
// made.
class BatchBuffer {
 public:
  struct Limits {
    int64_t max_tokens = 0;
    int64_t max_sequences = 0;  // where they are not the documents; else 0
    int64_t max_documents = 0;
    int64_t max_pages = 0;  // of a document
  };
  BatchBuffer(const kernels::Context& context, const Limits& limits, tensor::Arena& arena);

  // `num_tokens` new tokens from position `begin` on, and all pages of their document.
  struct Document {
    std::span<const int32_t> pages;
    int64_t begin = 0;
    int64_t num_tokens = 0;
  };
  struct Input {
    std::span<const int32_t> tokens;  // of all documents, one after the other
    std::span<const Document> documents;
    std::span<const int32_t> sequence_lengths = {};  // empty: each document is a sequence
    std::span<const int32_t> experts_of_token = {};  // empty: no view
    std::span<const int32_t> targets = {};           // with sequences; those below 0 do not count
  };
  // One copy to the device. Places and sizes follow from the numbers of tokens, documents and
  // sequences, and from which parts there are.
  BatchViews upload(const Input& input);

 private:
  kernels::Context context_;
  int64_t max_pages_;
  tensor::TensorView device_;  // I32: the parts in order
  std::vector<int32_t> host_;  // the same, before it is sent
};

}  // namespace dsmoe::model
