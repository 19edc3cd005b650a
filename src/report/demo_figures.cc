// Loss, additions, samples and routing, one after the other.
#include "report/demo_figures.h"

#include "base/error.h"
#include "base/progress.h"
#include "data/trigram.h"
#include "infer/measure/evaluate.h"
#include "infer/sequence/generate.h"
#include "infer/sequence/greedy.h"

namespace dsmoe::report {
namespace {

constexpr int64_t kAnswerTokens = 64;   // a worked addition has about 30
constexpr int64_t kSampleTokens = 200;  // no document of the corpus is longer

using Tokens = std::vector<int32_t>;

std::vector<int32_t> stop_ids(const model::Model& model) {
  std::vector<int32_t> ids;
  for (const int64_t id : model.config.eos_token_ids) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

void check(const DemoSubject& subject) {
  if (subject.cancelled != nullptr && subject.cancelled->load()) {
    fail(ErrorKind::resource, "interrupted; the same command with --resume measures again");
  }
}

double mean_loss(const DemoSubject& subject, const std::vector<Tokens>& documents) {
  std::vector<infer::ScoredDocument> scored;
  for (const Tokens& tokens : documents) scored.push_back({.tokens = tokens});
  Progress progress(
      {.label = "validate", .total = static_cast<int64_t>(scored.size()), .unit = "documents"});
  double nats = 0;
  int64_t targets = 0;
  infer::score_documents(subject.context, subject.trained, scored, {.cancelled = subject.cancelled},
                         [&](int64_t idx, const infer::TokenScores& scores) {
                           const infer::PairScore sum = infer::sum_scores(scores);
                           nats -= sum.log_likelihood;
                           targets += static_cast<int64_t>(scores.log_prob.size());
                           progress.update(idx + 1);
                         });
  check(subject);
  return nats / static_cast<double>(targets);
}

int64_t count_right_additions(const DemoSubject& subject) {
  const std::vector<data::Addition>& additions = subject.corpus.held_out_additions();
  std::vector<Tokens> prompts;
  for (const data::Addition& addition : additions) {
    prompts.push_back(subject.tokenizer.encode(data::addition_prompt(addition)));
  }
  Progress progress(
      {.label = "additions", .total = static_cast<int64_t>(prompts.size()), .unit = "answers"});
  int64_t right = 0;
  infer::answer_greedily(
      subject.context, subject.trained, prompts,
      {.max_tokens = kAnswerTokens,
       .stop_ids = stop_ids(subject.trained),
       .cancelled = subject.cancelled},
      [&](int64_t idx, std::span<const int32_t> answer) {
        const data::Addition& addition = additions[static_cast<std::size_t>(idx)];
        if (data::read_answer(subject.tokenizer.decode(answer)) == addition.a + addition.b) ++right;
        progress.update(idx + 1);
      });
  check(subject);
  return right;
}

std::vector<DemoFigures::Sample> draw_samples(const DemoSubject& subject) {
  std::vector<DemoFigures::Sample> samples;
  infer::Session session(subject.context, subject.trained, {});
  infer::GenerateOptions options;
  options.sampler.temperature = DemoFigures::kSampleTemperature;
  options.seed = subject.seed;
  options.max_tokens = kSampleTokens;
  options.stop_ids = stop_ids(subject.trained);
  options.cancelled = subject.cancelled;
  for (const data::DemoDomain domain : data::kDemoDomains) {
    const std::string prompt = data::demo_prompt(domain);
    const infer::Generation generation =
        infer::generate(session, subject.tokenizer.encode(prompt), options,
                        [](int32_t) { return infer::Next::more; });
    samples.push_back({.domain = domain,
                       .prompt = prompt,
                       .answer = subject.tokenizer.decode(
                           generation.tokens, {.skip_special = text::SkipSpecial::yes,
                                               .ill_formed = text::IllFormed::replace})});
  }
  check(subject);
  return samples;
}

std::vector<infer::LayerRouting> routing_of(const DemoSubject& subject, const model::Model& model,
                                            const std::vector<Tokens>& documents) {
  std::vector<infer::DomainDocument> labelled;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    labelled.push_back({.tokens = documents[d],
                        .domain = subject.validation.corpus.source(static_cast<int64_t>(d))});
  }
  const auto routing =
      infer::count_routing(subject.context, model, labelled,
                           {.num_domains = static_cast<int64_t>(data::kDemoDomains.size()),
                            .cancelled = subject.cancelled});
  check(subject);
  return routing;
}

}  // namespace

BestLayer best_layer(const std::vector<infer::LayerRouting>& routing) {
  BestLayer best;
  for (const infer::LayerRouting& layer : routing) {
    const double bits = infer::mutual_information(layer.first);
    if (bits > best.bits) best = {.layer = layer.layer, .bits = bits};
  }
  return best;
}

DemoFigures measure_demo(const DemoSubject& subject) {
  const data::MemoryCorpus& corpus = subject.validation.corpus;
  std::vector<Tokens> documents;
  for (int64_t d = 0; d < corpus.num_documents(); ++d) {
    documents.push_back(data::all_tokens(corpus, d));
  }
  DemoFigures figures{.valid_documents = corpus.num_documents(),
                      .valid_targets = subject.validation.num_targets,
                      .floor = subject.validation.floor()};
  figures.trigram =
      data::score(data::fit_trigram(subject.training.corpus), corpus).nats_per_token();
  figures.loss = mean_loss(subject, documents);
  figures.additions = static_cast<int64_t>(subject.corpus.held_out_additions().size());
  figures.additions_right = count_right_additions(subject);
  figures.sample_seed = subject.seed;
  figures.samples = draw_samples(subject);
  figures.routing = routing_of(subject, subject.trained, documents);
  figures.untrained = routing_of(subject, subject.untrained, documents);
  return figures;
}

}  // namespace dsmoe::report
