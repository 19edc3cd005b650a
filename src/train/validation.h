// The loss on documents that are not trained on, in all and by source; the best one so far.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/mixture.h"
#include "train/step.h"

namespace dsmoe::train {

// Nats per counted target.
struct ValidationLoss {
  double loss = 0;
  std::vector<std::optional<double>> sources;  // by Validation::sources(); absent: no target counts
  std::optional<double> bits_per_byte;         // of the targets' text, where its bytes are known
};

class Validation {
 public:
  // Parts without a token to predict are left out, and named in the log; without any part there is
  // no validation. At most `rows` rows, the same ones each time. `token_bytes`: the bytes of text
  // that each id stands for; empty: not known.
  struct Limits {
    int64_t rows = 0;
    std::span<const int32_t> token_bytes;
  };
  Validation(std::span<const data::MixturePart> parts, const data::BatchOptions& options,
             const Limits& limits);

  std::optional<ValidationLoss> run(Trainer& trainer);
  // Names; none where there is no validation.
  const std::vector<std::string>& sources() const;

 private:
  int64_t batch_;
  std::span<const int32_t> token_bytes_;
  std::unique_ptr<data::MixedBatches> batches_;
  std::vector<data::MixedBatches::Place> places_;
};

// Per source nats per counted target, absent where nothing was counted; as many as `num_sources`.
std::vector<std::optional<double>> losses_of(std::span<const SourceLoss> sums,
                                             std::size_t num_sources);

// Rows of a batch without their padding.
void pack_rows(const data::Batch& batch, StepRows& rows);

}  // namespace dsmoe::train
