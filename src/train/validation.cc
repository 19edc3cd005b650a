// Validation rows through the trainer, summed by source.
#include "train/validation.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace dsmoe::train {
namespace {

// Error(input) is what PackedBatches throws when nothing is to be predicted.
bool has_targets(const data::MixturePart& part, data::BatchOptions options) {
  options.part = part.part;
  try {
    data::PackedBatches(*part.split, options);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    log_info("no validation: {}", error.what());
    return false;
  }
}

}  // namespace

Validation::Validation(std::span<const data::MixturePart> parts, const data::BatchOptions& options,
                       const Limits& limits)
    : batch_(options.batch), token_bytes_(limits.token_bytes) {
  std::vector<data::MixturePart> used;
  for (const data::MixturePart& part : parts) {
    if (has_targets(part, options)) used.push_back(part);
  }
  if (used.empty()) return;
  batches_ = std::make_unique<data::MixedBatches>(used, options);
  places_ = batches_->first_rows(limits.rows);
}

const std::vector<std::string>& Validation::sources() const {
  static const std::vector<std::string> kNone;
  return batches_ ? batches_->sources() : kNone;
}

std::optional<ValidationLoss> Validation::run(Trainer& trainer) {
  Trainer::Evaluation sum;
  int64_t bytes = 0;
  data::Batch batch;
  StepRows packed;
  const std::span<const data::MixedBatches::Place> places(places_);
  for (std::size_t first = 0; first < places.size(); first += static_cast<std::size_t>(batch_)) {
    batches_->fill(
        places.subspan(first, std::min(static_cast<std::size_t>(batch_), places.size() - first)),
        batch);
    pack_rows(batch, packed);
    for (const int32_t target : packed.targets) {
      if (target >= 0 && !token_bytes_.empty()) bytes += token_bytes_[static_cast<size_t>(target)];
    }
    const Trainer::Evaluation& part = trainer.evaluate(packed);
    sum.nats += part.nats;
    sum.counted += part.counted;
    sum.sources.resize(std::max(sum.sources.size(), part.sources.size()));
    for (std::size_t s = 0; s < part.sources.size(); ++s) {
      sum.sources[s].nats += part.sources[s].nats;
      sum.sources[s].counted += part.sources[s].counted;
    }
  }
  if (sum.counted == 0) return std::nullopt;
  ValidationLoss result{.loss = sum.nats / static_cast<double>(sum.counted),
                        .sources = losses_of(sum.sources, sources().size())};
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  if (bytes > 0) result.bits_per_byte = sum.nats / kLn2 / static_cast<double>(bytes);
  return result;
}

std::vector<std::optional<double>> losses_of(std::span<const SourceLoss> sums,
                                             std::size_t num_sources) {
  std::vector<std::optional<double>> losses(num_sources);
  for (std::size_t s = 0; s < std::min(num_sources, sums.size()); ++s) {
    if (sums[s].counted > 0) losses[s] = sums[s].nats / static_cast<double>(sums[s].counted);
  }
  return losses;
}

void pack_rows(const data::Batch& batch, StepRows& rows) {
  rows.clear();
  std::size_t room = 0;  // for every step: rows are padded to one length, a document has a token
  for (const data::PackedRow& row : batch.rows) room += row.tokens.size();
  for (auto* values :
       {&rows.tokens, &rows.targets, &rows.document_lengths, &rows.document_sources}) {
    values->reserve(room);
  }
  for (const data::PackedRow& row : batch.rows) {
    const auto count = static_cast<std::ptrdiff_t>(row.num_tokens());
    rows.tokens.insert(rows.tokens.end(), row.tokens.begin(), row.tokens.begin() + count);
    rows.targets.insert(rows.targets.end(), row.targets.begin(), row.targets.begin() + count);
    rows.row_lengths.push_back(static_cast<int32_t>(count));
    rows.documents_per_row.push_back(static_cast<int32_t>(row.pieces.size()));
    for (const data::Piece& piece : row.pieces) {
      rows.document_lengths.push_back(piece.length);
      rows.document_sources.push_back(piece.source);
    }
  }
}

}  // namespace dsmoe::train
