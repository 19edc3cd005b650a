// Tables of a few lines each, none wider than a terminal.
#include "report/demo_report.h"

#include <fmt/core.h>

#include <cmath>

#include "base/readable.h"

namespace dsmoe::report {
namespace {

// Cells of a domain's row in the table.
constexpr int64_t kShownExperts = 4;

std::string format_training(const DemoResult& result) {
  std::string text = fmt::format(
      "model            {}\n"
      "                 {} parameters, {} used per token\n"
      "                 {} routed experts, {} per token; {} shared\n",
      result.model.string(), with_commas(result.config.num_parameters()),
      with_commas(result.config.num_active_parameters()), result.config.n_routed_experts,
      result.config.num_experts_per_tok, result.config.n_shared_experts);
  text += fmt::format("trained          {} steps", with_commas(result.steps));
  if (result.tokens > 0 && result.seconds > 0) {
    text += fmt::format(
        "; this time {} tokens in {:.0f} s ({} tokens/s)", with_commas(result.tokens),
        result.seconds,
        with_commas(static_cast<int64_t>(static_cast<double>(result.tokens) / result.seconds)));
  }
  return text + "\n";
}

std::string format_losses(const DemoFigures& figures) {
  return fmt::format(
      "\nvalidation loss  nats per token, {} documents never trained on, {} tokens\n"
      "  trigram model  {:.4f}  counts of three tokens in the same training text\n"
      "  this model     {:.4f}\n"
      "  floor          {:.4f}  the entropy of the text itself: nothing can do better\n"
      "  gap closed     {:.1f} % of the way from the trigram model to the floor\n"
      "\nadditions        {} of {} right ({:.1f} %): two digits plus two digits, greedy;\n"
      "                 the training text has none of these pairs, in either order\n",
      with_commas(figures.valid_documents), with_commas(figures.valid_targets), figures.trigram,
      figures.loss, figures.floor, 100 * figures.gap_closed(), figures.additions_right,
      figures.additions,
      100.0 * static_cast<double>(figures.additions_right) /
          static_cast<double>(figures.additions));
}

std::string indented(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "    ";
  }
  return out;
}

std::string format_samples(const DemoFigures& figures) {
  std::string text = fmt::format(
      "\nsamples          [the prompt] and what the model makes of it; temperature {}, seed {}\n",
      DemoFigures::kSampleTemperature, figures.sample_seed);
  for (const DemoFigures::Sample& sample : figures.samples) {
    text += fmt::format("  {}\n    {}\n", data::to_string(sample.domain),
                        indented(for_terminal("[" + sample.prompt + "]" + sample.answer)));
  }
  return text;
}

std::string format_routing(const DemoResult& result) {
  const DemoFigures& figures = result.figures;
  std::string text = fmt::format(
      "\nspecialisation   share of a domain's tokens by strongest expert; even: {:.1f} %\n",
      100.0 / static_cast<double>(result.config.n_routed_experts));
  for (const infer::LayerRouting& layer : figures.routing) {
    for (const data::DemoDomain domain : data::kDemoDomains) {
      const auto row = static_cast<std::size_t>(domain);
      text += fmt::format("  {:<9}{:<10}", row == 0 ? fmt::format("layer {}", layer.layer) : "",
                          data::to_string(domain));
      for (const auto& [expert, share] : infer::top_shares(layer.first[row], kShownExperts)) {
        text += fmt::format("  {:>3}: {:>4.1f} %", expert, 100 * share);
      }
      text += "\n";
    }
  }
  text += fmt::format(
      "\nmutual information, domain and strongest expert, bits; {:.1f} identify the domain\n",
      std::log2(static_cast<double>(data::kDemoDomains.size())));
  for (std::size_t l = 0; l < figures.routing.size(); ++l) {
    text += fmt::format("  layer {:<9}{:.3f}  untrained {:.3f}\n", figures.routing[l].layer,
                        infer::mutual_information(figures.routing[l].first),
                        infer::mutual_information(figures.untrained[l].first));
  }
  const BestLayer best = best_layer(figures.routing), before = best_layer(figures.untrained);
  text += fmt::format("  best           {:.3f} in layer {}; untrained {:.3f} in layer {}",
                      best.bits, best.layer, before.bits, before.layer);
  if (before.bits > 0) text += fmt::format(": {:.1f} times as much", best.bits / before.bits);
  return text + "\n";
}

std::string format_next(const DemoResult& result) {
  const std::string folder = result.model.string();
  return fmt::format(
      "\ntry next\n"
      "  dsmoe generate {0} -p \"{1}\" --temperature 0\n"
      "  dsmoe generate {0} -p \"Once upon a time\" --show-experts\n"
      "  dsmoe chat {0}\n"
      "  dsmoe info {0}\n",
      folder, data::demo_prompt(data::DemoDomain::addition));
}

OrderedJson json_of(const std::vector<infer::LayerRouting>& routing) {
  OrderedJson layers = OrderedJson::array();
  for (const infer::LayerRouting& layer : routing) {
    OrderedJson first, chosen;
    for (const data::DemoDomain domain : data::kDemoDomains) {
      const std::string name(data::to_string(domain));
      first[name] = layer.first[static_cast<std::size_t>(domain)];
      chosen[name] = layer.chosen[static_cast<std::size_t>(domain)];
    }
    layers.push_back({{"layer", layer.layer},
                      {"mutual_information_bits", infer::mutual_information(layer.first)},
                      {"tokens_by_strongest_expert", first},
                      {"tokens_by_chosen_expert", chosen}});
  }
  return layers;
}

}  // namespace

std::string format_demo(const DemoResult& result) {
  return format_training(result) + format_losses(result.figures) + format_samples(result.figures) +
         format_routing(result) + format_next(result);
}

OrderedJson demo_json(const DemoResult& result) {
  const DemoFigures& figures = result.figures;
  OrderedJson samples = OrderedJson::array();
  for (const DemoFigures::Sample& sample : figures.samples) {
    samples.push_back({{"domain", data::to_string(sample.domain)},
                       {"prompt", sample.prompt},
                       {"answer", sample.answer}});
  }
  return {{"model", result.model.string()},
          {"steps", result.steps},
          {"tokens", result.tokens},
          {"seconds", result.seconds},
          {"validation",
           {{"documents", figures.valid_documents},
            {"tokens", figures.valid_targets},
            {"trigram", figures.trigram},
            {"loss", figures.loss},
            {"floor", figures.floor},
            {"gap_closed", figures.gap_closed()}}},
          {"additions", {{"right", figures.additions_right}, {"of", figures.additions}}},
          {"sampling",
           {{"temperature", DemoFigures::kSampleTemperature}, {"seed", figures.sample_seed}}},
          {"samples", samples},
          {"routing", json_of(figures.routing)},
          {"untrained_routing", json_of(figures.untrained)}};
}

}  // namespace dsmoe::report
