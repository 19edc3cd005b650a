// Counts by an observer of the forward pass.
#include "infer/measure/specialisation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "infer/sequence/workspace.h"
#include "kernels/memory.h"

namespace dsmoe::infer {
namespace {

constexpr int64_t kMaxSequences = 64;

int64_t length_of(const DomainDocument& document) {
  return static_cast<int64_t>(document.tokens.size());
}

std::vector<LayerRouting> empty_counts(const model::ModelConfig& config, int64_t num_domains) {
  const DomainCounts zero(
      static_cast<std::size_t>(num_domains),
      std::vector<int64_t>(static_cast<std::size_t>(config.n_routed_experts), 0));
  std::vector<LayerRouting> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (config.is_moe_layer(layer)) {
      layers.push_back({.layer = layer, .chosen = zero, .first = zero});
    }
  }
  return layers;
}

// `index` is [tokens, top_k]; slot 0 is the strongest.
void add_counts(LayerRouting& routing, std::span<const int32_t> index, int64_t top_k,
                std::span<const int32_t> domains) {
  for (std::size_t t = 0; t < domains.size(); ++t) {
    const auto domain = static_cast<std::size_t>(domains[t]);
    const auto slots =
        index.subspan(t * static_cast<std::size_t>(top_k), static_cast<std::size_t>(top_k));
    if (slots[0] >= 0) ++routing.first[domain][static_cast<std::size_t>(slots[0])];
    for (const int32_t expert : slots) {
      if (expert >= 0) ++routing.chosen[domain][static_cast<std::size_t>(expert)];
    }
  }
}

// Documents that run together, and the domain of each of their tokens.
struct Pack {
  std::vector<int32_t> tokens, domains;
  std::vector<int64_t> lengths;

  void add(const DomainDocument& document) {
    tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
    domains.insert(domains.end(), document.tokens.size(), document.domain);
    lengths.push_back(length_of(document));
  }
  bool fits(const DomainDocument& document, int64_t max_tokens) const {
    return static_cast<int64_t>(lengths.size()) < kMaxSequences &&
           static_cast<int64_t>(tokens.size()) + length_of(document) <= max_tokens;
  }
  void clear() {
    tokens.clear();
    domains.clear();
    lengths.clear();
  }
};

class Counter {
 public:
  Counter(const kernels::Context& context, const model::Model& model, int64_t max_tokens,
          int64_t num_domains)
      : context_(context),
        cache_(context, model.kv_layers(),
               attention::KvCache::pages_for(max_tokens) + kMaxSequences),
        pass_(context, model, cache_, {.max_tokens = max_tokens, .max_sequences = kMaxSequences}),
        counts_(empty_counts(model.config, num_domains)) {}

  void run(const Pack& pack) {
    if (pack.tokens.empty()) return;
    std::vector<attention::KvSequence> sequences(pack.lengths.size());
    std::vector<model::Segment> segments;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      segments.push_back({.sequence = &sequences[i], .num_tokens = pack.lengths[i]});
    }
    std::size_t place = 0;  // of the next MoE layer
    const auto observe = [&](int64_t, const moe::LayerTape& tape, const tensor::TensorView&) {
      if (!tape.index) return;
      index_.resize(static_cast<std::size_t>(tape.index.num_elements()));
      pass_.read(tape.index, index_.data());
      add_counts(counts_[place++], index_, tape.index.dim(1), pack.domains);
    };
    model::BlockObserver observer(observe);
    pass_.run({.tokens = pack.tokens, .segments = segments, .observer = &observer});
    for (attention::KvSequence& sequence : sequences) cache_.truncate(sequence, 0);
  }

  std::vector<LayerRouting> take() { return std::move(counts_); }

 private:
  kernels::Context context_;
  attention::KvCache cache_;
  model::ForwardPass pass_;
  std::vector<LayerRouting> counts_;
  std::vector<int32_t> index_;
};

}  // namespace

std::vector<LayerRouting> count_routing(const kernels::Context& context, const model::Model& model,
                                        std::span<const DomainDocument> documents,
                                        const RoutingOptions& options) {
  int64_t max_tokens = kChunkTokens;
  for (const DomainDocument& document : documents) {
    DSMOE_CHECK(length_of(document) >= 1 && length_of(document) <= model.context,
                "a document of {} tokens, the context is {}", length_of(document), model.context);
    DSMOE_CHECK(document.domain >= 0 && document.domain < options.num_domains,
                "domain {} of {} domains", document.domain, options.num_domains);
    check_tokens(model.config, document.tokens, "input");
    max_tokens = std::max(max_tokens, length_of(document));
  }
  Counter counter(context, model, max_tokens, options.num_domains);
  Pack pack;
  for (const DomainDocument& document : documents) {
    if (options.cancelled != nullptr && options.cancelled->load()) return counter.take();
    if (!pack.fits(document, max_tokens)) {
      counter.run(pack);
      pack.clear();
    }
    pack.add(document);
  }
  counter.run(pack);
  return counter.take();
}

double mutual_information(const DomainCounts& counts) {
  if (counts.empty()) return 0;
  std::vector<double> column(counts.front().size(), 0);
  double total = 0;
  for (const auto& row : counts) {
    for (std::size_t e = 0; e < row.size(); ++e) {
      column[e] += static_cast<double>(row[e]);
      total += static_cast<double>(row[e]);
    }
  }
  double bits = 0;
  for (const auto& row : counts) {
    const auto row_sum = static_cast<double>(std::accumulate(row.begin(), row.end(), int64_t{0}));
    for (std::size_t e = 0; e < row.size(); ++e) {
      if (row[e] == 0) continue;
      const auto n = static_cast<double>(row[e]);
      bits += n / total * std::log2(n * total / (row_sum * column[e]));
    }
  }
  return std::max(bits, 0.0);  // rounding may leave a little less than nothing
}

std::vector<ExpertShare> top_shares(std::span<const int64_t> row, int64_t count) {
  std::vector<int64_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  const auto total = static_cast<double>(std::accumulate(row.begin(), row.end(), int64_t{0}));
  std::vector<ExpertShare> shares;
  for (const int64_t expert : order) {
    const int64_t tokens = row[static_cast<std::size_t>(expert)];
    if (tokens == 0 || static_cast<int64_t>(shares.size()) == count) break;
    shares.push_back({.expert = expert, .share = static_cast<double>(tokens) / total});
  }
  return shares;
}

}  // namespace dsmoe::infer
