// The reader of next-token logits: logits of hidden states, the ids chosen from them on the device,
// and what of both comes to the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sample.h"
#include "model/language_model.h"

namespace dsmoe::infer {

// Of a pass's last run; `pass` must outlive it. Where the pass keeps no routing, what is read
// brings its flags along, and throws as ForwardPass::read() does; elsewhere whoever reads the
// routing meets them.
class NextTokens {
 public:
  // At most `max_rows` rows at a time, and fewer where their logits were more than 32 MiB.
  NextTokens(const kernels::Context& context, const model::Model& model, model::ForwardPass& pass,
             int64_t max_rows);

  int64_t max_rows() const { return logits_.dim(0); }

  // Logits of some rows of what run() returned, and with `most_likely` also the likeliest id of
  // each, which the next two need.
  enum class Wanted : uint8_t { logits, most_likely };
  void compute(const tensor::TensorView& hidden, Wanted wanted = Wanted::most_likely);

  // Per row; -1 where a logit is not finite. Valid until the next call.
  std::span<const int32_t> most_likely();
  std::span<const int32_t> choose(std::span<const kernels::SampleRule> rules);

  // [rows, vocabulary], to be changed at will; valid until the next call.
  std::span<float> logits();

 private:
  template <class T>
  std::span<T> read(const tensor::TensorView& source, std::vector<T>& host);

  kernels::Context context_;
  model::ForwardPass& pass_;
  bool reads_flags_;
  tensor::Arena arena_;
  tensor::TensorView logits_;  // [max_rows, vocabulary]
  tensor::TensorView best_;    // [max_rows] I32: the most likely
  tensor::TensorView choice_;  // [max_rows] I32
  int64_t rows_ = 0;           // of the last compute()
  std::vector<float> host_logits_;
  std::vector<int32_t> host_ids_;
};

}  // namespace dsmoe::infer
