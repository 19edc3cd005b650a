// Cuts a step's rows into micro-batches; what each adds does not depend on the cut.
#include "train/step.h"

#include <algorithm>
#include <numeric>

#include "kernels/memory.h"
#include "kernels/table.h"

namespace dsmoe::train {

namespace {

// Documents of a micro-batch: each takes pages of its own in the KV cache, so that memory for as
// many as there are tokens would be far too much. Micro-batches with more are cut.
int64_t most_documents(const TrainerOptions& options) {
  constexpr int64_t kUsual = 4096;
  return std::max(options.losses.rows_per_balance_group * options.max_row_tokens,
                  std::min(options.rows_per_micro_batch * options.max_row_tokens, kUsual));
}

// What a rank without rows of its own runs, so that its experts serve the others.
constexpr int32_t kNoTokens[] = {0};

comm::Group& group_of(const TrainerOptions& options, comm::Self& self) {
  return options.sharing.group != nullptr ? *options.sharing.group : self;
}

// One rank may have several shards, too.
Optimizer::Sharing with_group(Optimizer::Sharing sharing, comm::Group& group) {
  if (!sharing.layout.is_plain()) sharing.group = &group;
  return sharing;
}

}  // namespace

Trainer::Trainer(const Context& context, const model::Model& model,
                 FunctionRef<bool(const std::string&)> trains, ParameterSource& initial,
                 const TrainerOptions& options)
    : options_(options),
      group_(group_of(options, self_)),
      gradient_arena_("gradients", context.table->allocator),
      gradients_(context, model, options.sharing.layout, trains, gradient_arena_),
      optimizer_(context, model, gradients_, trains, initial, options.optimizer,
                 with_group(options.sharing, group_)),
      pass_(context, model, gradients_.first().views, options.losses,
            {.max_tokens = options.rows_per_micro_batch * options.max_row_tokens,
             .max_rows = options.rows_per_micro_batch,
             .max_documents = most_documents(options)},
            options.recompute) {
  const RankLayout& layout = options.sharing.layout;
  DSMOE_CHECK(options.rows_per_micro_batch % options.losses.rows_per_balance_group == 0,
              "a micro-batch of {} rows does not hold whole balance groups of {}",
              options.rows_per_micro_batch, options.losses.rows_per_balance_group);
  DSMOE_CHECK(model.share.rank == layout.expert_rank() && model.share.ranks == layout.expert_ranks,
              "the model holds share {} of {} of the experts, the layout says {} of {}",
              model.share.rank, model.share.ranks, layout.expert_rank(), layout.expert_ranks);
  result_.load.assign(
      static_cast<std::size_t>(model.config.num_moe_layers()),
      std::vector<int64_t>(static_cast<std::size_t>(model.config.n_routed_experts), 0));
  result_.sources.reserve(kUsualSources);
  evaluation_.sources.reserve(kUsualSources);
}

void Trainer::take_rows(const StepRows& rows, int64_t rows_per_unit) {
  const RankLayout& layout = options_.sharing.layout;
  const bool one = layout.is_unit_by_unit();
  rows_.take(rows, layout,
             {.rows_per_unit = rows_per_unit,
              .units = one ? 1 : options_.rows_per_micro_batch / rows_per_unit,
              .documents = most_documents(options_)});
  document_nats_.clear();
  nats_ = 0;
  next_document_ = next_token_ = 0;
}

template <class F>
void Trainer::for_each_micro_batch(const StepRows& rows, std::vector<SourceLoss>& sources, F&& f) {
  const bool serves = options_.sharing.layout.expert_ranks > 1;
  for (OwnRows::Part part; rows_.next(part);) {
    if (part.row_lengths.empty() && !serves) continue;
    model::MicroBatch batch{.tokens = part.tokens,
                            .targets = part.targets,
                            .row_lengths = part.row_lengths,
                            .document_lengths = part.document_lengths};
    if (part.row_lengths.empty()) batch.row_lengths = kNoTokens;
    const model::PassLosses& losses = f(batch, part.first_block);
    if (is_alone()) {
      add_documents(rows, losses.document_nats, sources);
    } else {
      document_nats_.insert(document_nats_.end(), losses.document_nats.begin(),
                            losses.document_nats.end());
    }
  }
  if (!is_alone()) gather_document_nats(rows, sources);
}

// Where the first micro-batch does not assign them all.
void Trainer::start_gradients() {
  const RankLayout& layout = options_.sharing.layout;
  if (!gradients_are_zero_ || (!layout.is_unit_by_unit() && rows_.num_units() > 0)) return;
  gradients_are_zero_ = false;
  for (std::size_t i = 0; i < gradients_.first().named.size(); ++i) {
    for (const model::NamedGradient& shard : gradients_.shards_of(i)) {
      if (!shard.is_assigned) continue;
      kernels::zero(optimizer_.context(), shard.gradient.data, shard.gradient.num_bytes());
    }
  }
}

// Every rank's, in the order of the step.
void Trainer::gather_document_nats(const StepRows& rows, std::vector<SourceLoss>& sources) {
  std::vector<std::vector<double>> of_rank;
  std::vector<comm::Room> receive;
  for (int rank = 0; rank < group_.size(); ++rank)
    of_rank.emplace_back(static_cast<std::size_t>(rows_.num_documents(rank)));
  for (std::vector<double>& values : of_rank)
    receive.push_back(std::as_writable_bytes(std::span(values)));
  const std::vector<comm::Bytes> send(of_rank.size(), std::as_bytes(std::span(document_nats_)));
  group_.exchange("losses of documents", send, receive);
  document_nats_.clear();
  rows_.for_each_document([&](int64_t rank, int64_t idx) {
    document_nats_.push_back(
        of_rank[static_cast<std::size_t>(rank)][static_cast<std::size_t>(idx)]);
  });
  add_documents(rows, document_nats_, sources);
}

// The next documents of the step, in their order: neither micro-batches nor ranks change the sums.
void Trainer::add_documents(const StepRows& rows, std::span<const double> nats,
                            std::vector<SourceLoss>& sources) {
  for (const double of_document : nats) {
    nats_ += of_document;
    const std::size_t document = next_document_++;
    if (rows.document_sources.empty()) continue;
    const auto source = static_cast<std::size_t>(rows.document_sources[document]);
    if (source >= sources.size()) sources.resize(source + 1);
    const auto targets =
        std::span(rows.targets)
            .subspan(next_token_, static_cast<std::size_t>(rows.document_lengths[document]));
    sources[source].nats += of_document;
    sources[source].counted +=
        std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
    next_token_ += targets.size();
  }
}

// Loads are integers; the three losses beside the language loss are added in the order of ranks.
void Trainer::gather_statistics() {
  if (is_alone()) return;
  for (double* loss : {&result_.balance, &result_.device_balance, &result_.z}) {
    const std::vector<double> of_rank = group_.gather("losses of the routers", *loss);
    *loss = std::accumulate(of_rank.begin(), of_rank.end(), 0.0);
  }
  for (std::vector<int64_t>& layer : result_.load) {
    std::vector<int64_t> of_rank(layer.size() * static_cast<std::size_t>(group_.size()));
    group_.gather_bytes("loads of the experts", std::as_bytes(std::span(layer)),
                        std::as_writable_bytes(std::span(of_rank)));
    for (std::size_t i = 0; i < layer.size(); ++i) layer[i] = 0;
    for (std::size_t i = 0; i < of_rank.size(); ++i) layer[i % layer.size()] += of_rank[i];
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
  take_rows(rows, group);
  start_gradients();
  const auto run = [&](model::MicroBatch batch, int64_t block) -> const model::PassLosses& {
    if (gradients_are_zero_) batch.start = kernels::GradientStart::from_zero;
    gradients_are_zero_ = false;
    batch.gradients = &gradients_.of_block(block);
    batch.gradients_of_unit = gradients_.of_units(block);
    const model::PassLosses& losses = pass_.run(batch, scale);
    result_.balance += losses.balance;
    result_.device_balance += losses.device_balance;
    result_.z += losses.z;
    for (std::size_t layer = 0; layer < losses.load.size(); ++layer) {
      for (std::size_t e = 0; e < losses.load[layer].size(); ++e) {
        result_.load[layer][e] += losses.load[layer][e];
      }
    }
    return losses;
  };
  for_each_micro_batch(rows, result_.sources, run);
  gather_statistics();
  result_.language = nats_ / static_cast<double>(result_.counted);
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
  evaluation_.counted = rows.num_counted();
  evaluation_.sources.clear();
  take_rows(rows, 1);
  for_each_micro_batch(rows, evaluation_.sources,
                       [&](const model::MicroBatch& batch, int64_t) -> const model::PassLosses& {
                         return pass_.evaluate(batch);
                       });
  evaluation_.nats = nats_;
  return evaluation_;
}

std::vector<const tensor::Arena*> Trainer::arenas() const {
  return {&gradient_arena_, &optimizer_.arena(), &pass_.arena(), &pass_.kv_arena()};
}

}  // namespace dsmoe::train
