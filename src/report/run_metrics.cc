// Curves of a run, thinned so that a page stays small however long the run was.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "report/run_report.h"

namespace dsmoe::report {
namespace {

using train::LoggedStep;
using Log = std::vector<LoggedStep>;

// Consecutive steps whose values are averaged: [begin, end).
struct Bucket {
  std::size_t begin = 0, end = 0;
};

std::vector<Bucket> make_buckets(std::size_t size, std::size_t most) {
  const std::size_t count = std::min(size, most);
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < count; ++i) {
    buckets.push_back({size * i / count, size * (i + 1) / count});
  }
  return buckets;
}

OrderedJson averaged(const Log& log, const std::vector<Bucket>& buckets,
                     const std::function<double(const LoggedStep&)>& value) {
  OrderedJson values = OrderedJson::array();
  for (const Bucket& bucket : buckets) {
    double sum = 0;
    for (std::size_t i = bucket.begin; i < bucket.end; ++i) sum += value(log[i]);
    const double mean = sum / static_cast<double>(bucket.end - bucket.begin);
    values.push_back(static_cast<float>(std::clamp(mean, -1e30, 1e30)));  // digits enough to draw
  }
  return values;
}

double speed_of(const LoggedStep& step) {
  return step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : 0;
}

OrderedJson layers_json(const Log& log, const std::vector<Bucket>& buckets) {
  OrderedJson layers = OrderedJson::array();
  for (std::size_t l = 0; l < log.front().layers.size(); ++l) {
    const auto of = [&](auto&& field) {
      return averaged(log, buckets, [&](const LoggedStep& step) { return field(step.layers[l]); });
    };
    using Layer = train::LoggedLayer;
    layers.push_back(
        {{"layer", log.front().layers[l].layer},
         {"entropy", of([](const Layer& layer) { return layer.load_entropy; })},
         {"max", of([](const Layer& layer) { return layer.max_load; })},
         {"dead", of([](const Layer& layer) { return static_cast<double>(layer.dead); })}});
  }
  return layers;
}

bool has_loads(const LoggedStep& step, const LoggedStep& like) {
  if (step.layers.empty()) return false;
  for (std::size_t l = 0; l < step.layers.size(); ++l) {
    if (step.layers[l].load.empty()) return false;
    if (step.layers[l].load.size() != like.layers[l].load.size()) {
      fail(ErrorKind::input, "metrics.jsonl: step {} has loads of {} experts, step {} of {}",
           step.step, step.layers[l].load.size(), like.step, like.layers[l].load.size());
    }
  }
  return true;
}

// Every expert's load over time, averaged within columns.
OrderedJson loads_json(const Log& log, std::size_t max_columns) {
  std::vector<const LoggedStep*> steps;
  for (const LoggedStep& step : log) {
    if (has_loads(step, steps.empty() ? step : *steps.front())) steps.push_back(&step);
  }
  OrderedJson loads{{"steps", OrderedJson::array()}, {"layers", OrderedJson::array()}};
  if (steps.empty()) return loads;
  const std::vector<Bucket> columns = make_buckets(steps.size(), max_columns);
  for (const Bucket& column : columns) loads["steps"].push_back(steps[column.end - 1]->step);
  for (std::size_t l = 0; l < steps.front()->layers.size(); ++l) {
    OrderedJson values = OrderedJson::array();
    for (const Bucket& column : columns) {
      std::vector<double> sums(steps.front()->layers[l].load.size(), 0);
      for (std::size_t i = column.begin; i < column.end; ++i) {
        const std::vector<double>& load = steps[i]->layers[l].load;
        for (std::size_t e = 0; e < sums.size(); ++e) sums[e] += load[e];
      }
      OrderedJson ratios = OrderedJson::array();
      for (const double sum : sums) {
        // Three decimals, as the metrics have: the page needs no more.
        ratios.push_back(std::round(sum / static_cast<double>(column.end - column.begin) * 1000) /
                         1000);
      }
      values.push_back(ratios);
    }
    loads["layers"].push_back({{"layer", steps.front()->layers[l].layer}, {"values", values}});
  }
  return loads;
}

}  // namespace

namespace {

using Values = std::vector<std::pair<std::string, double>>;

// Curves by name of what some steps have; averaged within a bucket over those that have it.
OrderedJson curves_json(const Log& log, const std::vector<Bucket>& buckets,
                        Values LoggedStep::*field) {
  std::map<std::string, OrderedJson> curves;
  for (const Bucket& bucket : buckets) {
    std::map<std::string, std::pair<double, int64_t>> sums;
    int64_t last = 0;
    for (std::size_t i = bucket.begin; i < bucket.end; ++i) {
      for (const auto& [name, value] : log[i].*field) {
        sums[name].first += value;
        ++sums[name].second;
        last = log[i].step;
      }
    }
    for (const auto& [name, sum] : sums) {
      OrderedJson& points = curves[name];
      if (points.is_null()) points = OrderedJson::array();
      points.push_back({last, static_cast<float>(sum.first / static_cast<double>(sum.second))});
    }
  }
  OrderedJson list = OrderedJson::array();
  for (const auto& [name, points] : curves) list.push_back({{"name", name}, {"points", points}});
  return list;
}

}  // namespace

OrderedJson metrics_json(const Log& log, const CurveLimits& limits) {
  DSMOE_CHECK(!log.empty(), "no steps");
  const std::vector<Bucket> buckets = make_buckets(log.size(), limits.max_points);
  OrderedJson steps = OrderedJson::array(), validation = OrderedJson::array();
  for (const Bucket& bucket : buckets) steps.push_back(log[bucket.end - 1].step);
  if (log.front().first_validation_loss) {
    validation.push_back({0, *log.front().first_validation_loss});
  }
  for (const LoggedStep& step : log) {
    if (step.validation_loss) validation.push_back({step.step, *step.validation_loss});
  }
  const auto of = [&](double LoggedStep::*field) {
    return averaged(log, buckets, [&](const LoggedStep& step) { return step.*field; });
  };
  return {{"steps", steps},
          {"loss", of(&LoggedStep::loss)},
          {"validation", validation},
          {"sources", curves_json(log, buckets, &LoggedStep::source_losses)},
          {"validation_sources", curves_json(log, buckets, &LoggedStep::validation_source_losses)},
          {"figures", curves_json(log, buckets, &LoggedStep::figures)},
          {"lr", of(&LoggedStep::lr)},
          {"speed", averaged(log, buckets, speed_of)},
          {"gradient_norm", of(&LoggedStep::gradient_norm)},
          {"balance", of(&LoggedStep::balance_loss)},
          {"device_balance", of(&LoggedStep::device_balance_loss)},
          {"z", of(&LoggedStep::z_loss)},
          {"layers", layers_json(log, buckets)},
          {"loads", loads_json(log, limits.max_columns)}};
}

}  // namespace dsmoe::report
