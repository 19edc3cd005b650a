// Cuts a step's rows into micro-batches; what each adds does not depend on the cut.
#include "train/step.h"

#include <algorithm>
#include <numeric>

#include "kernels/table.h"

namespace dsmoe::train {

int64_t StepRows::num_counted() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

void StepRows::clear() {
  tokens.clear();
  targets.clear();
  row_lengths.clear();
  documents_per_row.clear();
  document_lengths.clear();
  document_sources.clear();
}

namespace {

// Documents of a micro-batch: each takes pages of its own in the KV cache, so that memory for as
// many as there are tokens would be far too much. Micro-batches with more are cut.
int64_t most_documents(const TrainerOptions& options) {
  constexpr int64_t kUsual = 4096;
  return std::max(options.losses.rows_per_balance_group * options.max_row_tokens,
                  std::min(options.rows_per_micro_batch * options.max_row_tokens, kUsual));
}

// A document is in one micro-batch whole, so that the sums do not depend on the cut.
void add_sources(const StepRows& rows, const model::MicroBatch& batch, std::size_t first_document,
                 const model::PassLosses& losses, std::vector<SourceLoss>& sources) {
  if (rows.document_sources.empty()) return;
  std::size_t token = 0;
  for (std::size_t d = 0; d < batch.document_lengths.size(); ++d) {
    const auto source = static_cast<std::size_t>(rows.document_sources[first_document + d]);
    if (source >= sources.size()) sources.resize(source + 1);
    const auto targets =
        batch.targets.subspan(token, static_cast<std::size_t>(batch.document_lengths[d]));
    sources[source].nats += losses.document_nats[d];
    sources[source].counted +=
        std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
    token += targets.size();
  }
}

}  // namespace

Trainer::Trainer(const Context& context, const model::Model& model,
                 FunctionRef<bool(const std::string&)> trains, ParameterSource& initial,
                 const TrainerOptions& options)
    : options_(options),
      gradient_arena_("gradients", context.table->allocator),
      gradients_(
          model::allocate_gradients(context, model.config, model.operand, trains, gradient_arena_)),
      optimizer_(context, model, gradients_, trains, initial, options.optimizer),
      pass_(context, model, gradients_.views, options.losses,
            {.max_tokens = options.rows_per_micro_batch * options.max_row_tokens,
             .max_rows = options.rows_per_micro_batch,
             .max_documents = most_documents(options)},
            options.recompute) {
  DSMOE_CHECK(options.rows_per_micro_batch % options.losses.rows_per_balance_group == 0,
              "a micro-batch of {} rows does not hold whole balance groups of {}",
              options.rows_per_micro_batch, options.losses.rows_per_balance_group);
  result_.load.assign(
      static_cast<std::size_t>(model.config.num_moe_layers()),
      std::vector<int64_t>(static_cast<std::size_t>(model.config.n_routed_experts), 0));
  result_.sources.reserve(kUsualSources);
  evaluation_.sources.reserve(kUsualSources);
}

template <class F>
void Trainer::for_each_micro_batch(const StepRows& rows, F&& f) {
  const std::span<const int32_t> tokens(rows.tokens), targets(rows.targets);
  const std::span<const int32_t> lengths(rows.row_lengths), documents(rows.document_lengths);
  std::size_t first_token = 0, first_document = 0;
  const auto total = static_cast<std::size_t>(rows.num_rows());
  const auto per_batch = static_cast<std::size_t>(options_.rows_per_micro_batch);
  const auto group = static_cast<std::size_t>(options_.losses.rows_per_balance_group);
  const auto documents_of = [&](std::size_t row, std::size_t count) {
    const auto counts = std::span(rows.documents_per_row).subspan(row, count);
    return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  };
  for (std::size_t row = 0, count = 0; row < total; row += count) {
    count = std::min(per_batch, total - row);
    while (count > group &&
           documents_of(row, count) > static_cast<std::size_t>(most_documents(options_))) {
      count -= group;
    }
    const auto part = lengths.subspan(row, count);
    const std::size_t num_tokens = std::accumulate(part.begin(), part.end(), std::size_t{0});
    const std::size_t num_documents = documents_of(row, count);
    f(model::MicroBatch{.tokens = tokens.subspan(first_token, num_tokens),
                        .targets = targets.subspan(first_token, num_tokens),
                        .row_lengths = part,
                        .document_lengths = documents.subspan(first_document, num_documents)},
      first_document);
    first_token += num_tokens;
    first_document += num_documents;
  }
}

const StepResult& Trainer::accumulate(const StepRows& rows) {
  const int64_t group = options_.losses.rows_per_balance_group;
  DSMOE_CHECK(rows.num_rows() > 0 && rows.num_rows() % group == 0,
              "{} rows are no whole number of balance groups of {}", rows.num_rows(), group);
  result_.tokens = static_cast<int64_t>(rows.tokens.size());
  result_.counted = rows.num_counted();
  DSMOE_CHECK(result_.counted > 0, "no target of the step counts");
  result_.language = result_.balance = result_.device_balance = result_.z = 0;
  for (std::vector<int64_t>& layer : result_.load) std::fill(layer.begin(), layer.end(), 0);
  const model::StepScale scale{.counted_targets = result_.counted,
                               .num_balance_groups = rows.num_rows() / group};
  std::fill(result_.sources.begin(), result_.sources.end(), SourceLoss());
  double nats = 0;
  for_each_micro_batch(rows, [&](model::MicroBatch batch, std::size_t first_document) {
    if (gradients_are_zero_) batch.start = kernels::GradientStart::from_zero;
    gradients_are_zero_ = false;
    const model::PassLosses& losses = pass_.run(batch, scale);
    nats += losses.nats;
    add_sources(rows, batch, first_document, losses, result_.sources);
    result_.balance += losses.balance;
    result_.device_balance += losses.device_balance;
    result_.z += losses.z;
    for (std::size_t layer = 0; layer < losses.load.size(); ++layer) {
      for (std::size_t e = 0; e < losses.load[layer].size(); ++e) {
        result_.load[layer][e] += losses.load[layer][e];
      }
    }
  });
  result_.language = nats / static_cast<double>(result_.counted);
  return result_;
}

const StepResult& Trainer::step(const StepRows& rows, double lr) {
  accumulate(rows);
  result_.gradient_norm = optimizer_.step(lr);
  gradients_are_zero_ = true;
  optimizer_.update_selection_bias(result_.load);
  return result_;
}

const Trainer::Evaluation& Trainer::evaluate(const StepRows& rows) {
  evaluation_.nats = 0;
  evaluation_.counted = rows.num_counted();
  evaluation_.sources.clear();
  for_each_micro_batch(rows, [&](const model::MicroBatch& batch, std::size_t first_document) {
    const model::PassLosses& losses = pass_.evaluate(batch);
    evaluation_.nats += losses.nats;
    add_sources(rows, batch, first_document, losses, evaluation_.sources);
  });
  return evaluation_;
}

std::vector<const tensor::Arena*> Trainer::arenas() const {
  return {&gradient_arena_, &optimizer_.arena(), &pass_.arena(), &pass_.kv_arena()};
}

}  // namespace dsmoe::train
