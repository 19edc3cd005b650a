// A table of architectures and a chart of their losses, one line each.
#include "report/comparison_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/readable.h"

namespace dsmoe::report {
namespace {

const ModelResult& base_of(const Comparison& comparison) {
  return *std::find_if(comparison.models.begin(), comparison.models.end(),
                       [](const ModelResult& result) { return result.model.name == "c"; });
}

std::string format_header(const CompareSettings& s) {
  return fmt::format(
      "data             {}\n"
      "trained          {} steps of {} x {} tokens, lr {} ({}), up to {} seeds\n"
      "validation loss  nats per token, mean ± standard deviation over a row's seeds\n",
      s.data_title, with_commas(s.steps), s.batch, s.seq, s.lr.text(), s.schedule, s.num_seeds);
}

enum class Sign { as_needed, always };

std::string with_spread(const train::Spread& spread, std::size_t count, Sign sign) {
  const std::string mean = sign == Sign::always ? fmt::format("{:+.4f}", spread.mean)
                                                : fmt::format("{:.4f}", spread.mean);
  return count > 1 ? fmt::format("{} ± {:.4f}", mean, spread.deviation) : mean;
}

// Every line fits 80 columns; fmt counts "±" as one, as a terminal does.
std::string format_losses(const Comparison& comparison) {
  std::string text = fmt::format("\n  {:<34}{:>17}{:>7}{:>19}\n", "", "validation loss", "seeds",
                                 "minus that of (c)");
  for (const ModelResult& result : comparison.models) {
    const std::size_t runs = result.runs.size();
    const bool has_excess = result.num_pairs > 0 && result.model.name != "c";
    text +=
        fmt::format("  {:<34}{:>17}{:>7}{:>19}\n", result.model.title,
                    runs > 0 ? with_spread(result.loss, runs, Sign::as_needed) : "unfinished",
                    runs > 0 ? std::to_string(runs) : "",
                    has_excess ? with_spread(result.excess, result.num_pairs, Sign::always) : "");
  }
  if (comparison.settings.floor) {
    text +=
        fmt::format("  {:<34}{:>8.4f}\n", "entropy of the text, about", *comparison.settings.floor);
  }
  return text;
}

std::string format_sizes(const Comparison& comparison) {
  std::string text = fmt::format("\n  {:<34}{:>12}{:>12}{:>9}{:>10}\n", "", "parameters", "active",
                                 "router", "tokens/s");
  for (const ModelResult& result : comparison.models) {
    const model::ModelConfig& config = result.model.config;
    text +=
        fmt::format("  {:<34}{:>12}{:>12}{:>9}{:>10}\n", result.model.title,
                    with_commas(config.num_parameters()),
                    with_commas(config.num_active_parameters()), with_commas(result.experts.router),
                    result.runs.empty() ? "" : with_commas(std::llround(result.tokens_per_second)));
  }
  const ModelResult& base = base_of(comparison);
  return text + fmt::format(
                    "\n  Expert parameters of (a), (b), (c): {} in all, {} per token, equal;\n"
                    "  what differs is the router.\n",
                    with_commas(base.experts.total), with_commas(base.experts.active));
}

std::string format_differences(const Comparison& comparison) {
  if (comparison.differences.empty()) return "";
  std::string text = fmt::format("\n  {:<22}{:>19}{:>22}{:>15}\n", "paired by seed", "difference",
                                 "95 % of its mean", "seeds above 0");
  for (const PairedDifference& d : comparison.differences) {
    const std::size_t count = d.pairs.size();
    const double half = train::half_width_95(d.spread, count);
    const auto above = std::count_if(d.pairs.begin(), d.pairs.end(),
                                     [](const auto& pair) { return pair.difference > 0; });
    text += fmt::format(
        "  {:<22}{:>19}{:>22}{:>15}\n", fmt::format("{} - {}", d.of, d.less),
        with_spread(d.spread, count, Sign::always),
        count > 1 ? fmt::format("{:+.4f} to {:+.4f}", d.spread.mean - half, d.spread.mean + half)
                  : "",
        fmt::format("{} of {}", above, count));
  }
  return text;
}

// One line per model: each seed a dot, the mean a bar.
std::string format_chart(const Comparison& comparison) {
  constexpr int kColumns = 43;
  double low = 1e300, high = -1e300;
  for (const ModelResult& result : comparison.models) {
    if (result.runs.empty()) continue;
    low = std::min(low, result.loss.lowest);
    high = std::max(high, result.loss.highest);
  }
  if (low > high) return "";
  const double range = std::max(high - low, 1e-9);
  const auto column = [&](double loss) {
    return static_cast<std::size_t>(std::lround((loss - low) / range * (kColumns - 1)));
  };
  std::string text = fmt::format("\n  {:<34} {:<{}.4f}{:>{}.4f}\n", "lower is better", low,
                                 kColumns / 2, high, kColumns - kColumns / 2);
  for (const ModelResult& result : comparison.models) {
    if (result.runs.empty()) continue;
    std::vector<std::string_view> cells(kColumns, "·");
    for (const ComparedRun& run : result.runs) cells[column(run.validation_loss)] = "o";
    cells[column(result.loss.mean)] = "█";
    text += fmt::format("  {:<34} ", result.model.title);
    for (const std::string_view cell : cells) text += cell;
    text += "\n";
  }
  return text + "                                     o one seed   █ mean\n";
}

OrderedJson spread_json(const train::Spread& spread) {
  return {{"mean", spread.mean},
          {"deviation", spread.deviation},
          {"lowest", spread.lowest},
          {"highest", spread.highest}};
}

OrderedJson difference_json(const PairedDifference& d) {
  OrderedJson pairs = OrderedJson::array();
  for (const auto& [seed, difference] : d.pairs) pairs.push_back({seed, difference});
  OrderedJson json{{"of", d.of}, {"less", d.less}, {"seeds", pairs}};
  json.update(spread_json(d.spread));
  const double half = train::half_width_95(d.spread, d.pairs.size());
  json["interval"] = std::isfinite(half) ? OrderedJson{d.spread.mean - half, d.spread.mean + half}
                                         : OrderedJson(nullptr);
  return json;
}

}  // namespace

std::string format_comparison(const Comparison& comparison) {
  return format_header(comparison.settings) + format_losses(comparison) + format_sizes(comparison) +
         format_differences(comparison) + format_chart(comparison);
}

OrderedJson comparison_json(const Comparison& comparison) {
  const CompareSettings& s = comparison.settings;
  OrderedJson models = OrderedJson::array();
  for (const ModelResult& result : comparison.models) {
    const model::ModelConfig& config = result.model.config;
    OrderedJson runs = OrderedJson::array();
    for (const ComparedRun& run : result.runs) {
      OrderedJson points = OrderedJson::array();
      for (const auto& [step, loss] : run.validation) points.push_back({step, loss});
      runs.push_back({{"seed", run.seed},
                      {"run", run_name(result.model, run.seed)},
                      {"validation_loss", run.validation_loss},
                      {"tokens_per_second", run.tokens_per_second},
                      {"validation", points}});
    }
    OrderedJson model{{"name", result.model.name},
                      {"title", result.model.title},
                      {"lr", s.lr.of(result.model.name)},
                      {"parameters", config.num_parameters()},
                      {"active_parameters", config.num_active_parameters()},
                      {"expert_parameters", result.experts.total},
                      {"active_expert_parameters", result.experts.active},
                      {"router_parameters", result.experts.router},
                      {"runs", runs}};
    if (!result.runs.empty()) {
      model["validation_loss"] = spread_json(result.loss);
      model["minus_loss_of_c"] =
          result.num_pairs > 0 ? spread_json(result.excess) : OrderedJson(nullptr);
      model["seeds_shared_with_c"] = result.num_pairs;
      model["tokens_per_second"] = result.tokens_per_second;
    }
    models.push_back(model);
  }
  OrderedJson json{{"data", s.data_title}, {"steps", s.steps},
                   {"batch", s.batch},     {"seq", s.seq},
                   {"lr", s.lr.all},       {"schedule", s.schedule},
                   {"seeds", s.num_seeds}, {"segments", s.shape.segments}};
  if (s.floor) json["floor"] = *s.floor;
  json["models"] = models;
  const std::optional<std::string> best = decided_best(comparison);
  json["decided_best"] = best ? OrderedJson(*best) : OrderedJson(nullptr);
  json["differences"] = OrderedJson::array();
  for (const PairedDifference& d : comparison.differences) {
    json["differences"].push_back(difference_json(d));
  }
  return json;
}

OrderedJson comparison_report(const Comparison& comparison) {
  const CompareSettings& s = comparison.settings;
  const auto tile = [](const char* name, const std::string& value, const std::string& detail) {
    return OrderedJson{{"name", name}, {"value", value}, {"detail", detail}};
  };
  const ModelResult& base = base_of(comparison);
  OrderedJson report{
      {"kind", "comparison"},
      {"title", "Who is best at equal parameters?"},
      {"subtitle", s.data_title},
      {"footer", "Written by dsmoe compare. One file, no outside requests."},
      {"tiles",
       {tile("tokens per run", human_number(static_cast<double>(s.steps * s.batch * s.seq)),
             fmt::format("{} steps of {} x {}", with_commas(s.steps), s.batch, s.seq)),
        tile("seeds", std::to_string(s.num_seeds), "same batches for all models"),
        tile("expert parameters", human_number(static_cast<double>(base.experts.total)),
             fmt::format("{} per token", human_number(static_cast<double>(base.experts.active)))),
        tile("learning rate", s.lr.text(), s.schedule)}}};
  report.update(comparison_json(comparison));
  if (!s.floor) report["floor"] = nullptr;
  return report;
}

}  // namespace dsmoe::report
