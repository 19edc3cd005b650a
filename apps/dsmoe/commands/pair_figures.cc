// The pairs of `dsmoe eval --pairs`, summed.
#include "commands/pair_figures.h"

#include "commands/eval_pairs.h"
#include "infer/load_model.h"
#include "infer/measure/evaluate.h"

namespace dsmoe::app {

struct PairFigures::State {
  std::vector<infer::JoinedPair> pairs;
};

PairFigures::PairFigures(const std::string& file, const train::RunTokenizer& tokenizer,
                         const model::ModelConfig& config, int64_t context)
    : state_(std::make_unique<State>()) {
  const TextSide text(tokenizer.folder);
  const EvalPairs read = read_pairs(file, text, config, PairBos::as_tokenizer);
  for (const EvalPairs::Line& line : read.lines) {
    state_->pairs.push_back(infer::join_pair(line.pair, context, read.prefix, line.what));
    infer::check_tokens(config, state_->pairs.back().tokens, line.what);
  }
}

PairFigures::~PairFigures() = default;

std::vector<std::string> PairFigures::names() { return {"pairs_log_likelihood", "pairs_greedy"}; }

std::vector<double> PairFigures::measure(const kernels::Context& context,
                                         const model::Model& model) const {
  std::vector<infer::ScoredDocument> documents;
  for (const infer::JoinedPair& pair : state_->pairs) {
    documents.push_back({pair.tokens, pair.first_target});
  }
  double sum = 0, greedy = 0;
  infer::score_documents(context, model, documents, {},
                         [&](int64_t, const infer::TokenScores& scores) {
                           const infer::PairScore score = infer::sum_scores(scores);
                           sum += score.log_likelihood;
                           greedy += score.greedy ? 1 : 0;
                         });
  const auto count = static_cast<double>(documents.size());
  return {sum / count, greedy / count};
}

}  // namespace dsmoe::app
