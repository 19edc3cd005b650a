// Two panels of curves with bands, drawn without a browser.
#include "report/comparison_figure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"

namespace dsmoe::report {
namespace {

constexpr double kWidth = 860, kPanelTop = 16, kPanelHeight = 250, kPanelWidth = 350;
constexpr double kLegendRow = 17;
// The first part of a run is steep: it would flatten what separates the models.
constexpr double kFirstShown = 0.2;

struct Look {
  const char* colour;
  const char* dashes;
};
// Distinct for colour-blind readers (Okabe and Ito); more models than these repeat.
constexpr std::array<Look, 8> kLooks = {{{"#4d4d4d", "6 3"},
                                         {"#d55e00", "2 2.5"},
                                         {"#0072b2", "9 3 2 3"},
                                         {"#009e73", "none"},
                                         {"#cc79a7", "4 2"},
                                         {"#e69f00", "1 2"},
                                         {"#56b4e9", "12 3"},
                                         {"#000000", "5 2 1 2"}}};

struct CurvePoint {
  double tokens = 0;  // millions
  train::Spread value;
};

struct Curve {
  std::string title;
  Look look;
  std::vector<CurvePoint> points;
};

struct Panel {
  double left = 0;  // of the axes
  std::string label;
  std::vector<Curve> curves;
};

struct Range {
  double low = 0, high = 0;
};

std::optional<double> loss_at(const ComparedRun& run, int64_t step) {
  const auto found = std::lower_bound(
      run.validation.begin(), run.validation.end(), step,
      [](const ComparedRun::Point& point, int64_t wanted) { return point.step < wanted; });
  if (found == run.validation.end() || found->step != step) return std::nullopt;
  return found->loss;
}

const ComparedRun* run_of_seed(std::span<const ComparedRun> runs, int64_t seed) {
  const auto found = std::find_if(runs.begin(), runs.end(),
                                  [&](const ComparedRun& run) { return run.seed == seed; });
  return found == runs.end() ? nullptr : &*found;
}

// Curves of losses, or with `base` of losses minus its own with the same seed.
std::vector<CurvePoint> curve_of(const CompareSettings& s, std::span<const ComparedRun> runs,
                                 const std::vector<ComparedRun>* base) {
  std::vector<CurvePoint> points;
  for (const auto& [step, unused] : runs.front().validation) {
    if (static_cast<double>(step) < kFirstShown * static_cast<double>(s.steps)) continue;
    std::vector<double> values;
    for (const ComparedRun& run : runs) {
      const ComparedRun* other = base == nullptr ? nullptr : run_of_seed(*base, run.seed);
      if (base != nullptr && other == nullptr) continue;
      const std::optional<double> loss = loss_at(run, step);
      const std::optional<double> less = other == nullptr ? 0 : loss_at(*other, step);
      if (loss && less) values.push_back(*loss - *less);
    }
    if (values.empty()) continue;
    points.push_back({.tokens = static_cast<double>(step * s.batch * s.seq) / 1e6,
                      .value = train::spread_of(values)});
  }
  return points;
}

Range range_of(const Panel& panel) {
  Range range{.low = 1e300, .high = -1e300};
  for (const Curve& curve : panel.curves) {
    for (const CurvePoint& point : curve.points) {
      range.low = std::min(range.low, point.value.lowest);
      range.high = std::max(range.high, point.value.highest);
    }
  }
  const double pad = std::max(1e-4, 0.04 * (range.high - range.low));
  return {range.low - pad, range.high + pad};
}

// Multiples of 1, 2 or 5 times a power of ten: at most `most` of them.
std::vector<double> ticks_of(const Range& range, int most) {
  const double rough = (range.high - range.low) / most;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  const double first = std::ceil(range.low / step);
  for (int i = 0; i <= most; ++i) {  // not until the end: a huge number plus one may be itself
    if ((first + i) * step <= range.high) ticks.push_back((first + i) * step);
  }
  return ticks;
}

std::string tick_text(double value) {
  const std::string text = fmt::format("{:.4g}", std::abs(value) < 1e-12 ? 0.0 : value);
  return text.starts_with('-') ? "\u2212" + text.substr(1) : text;
}

class PanelDrawing {
 public:
  PanelDrawing(const Panel& panel, const Range& tokens)
      : panel_(panel), x_range_(tokens), y_range_(range_of(panel)) {}

  std::string draw() const {
    std::string svg = axes();
    for (const Curve& curve : panel_.curves) svg += band(curve);
    for (const Curve& curve : panel_.curves) svg += line(curve);
    return svg;
  }

 private:
  double x(double tokens) const {
    return panel_.left + kPanelWidth * (tokens - x_range_.low) / (x_range_.high - x_range_.low);
  }
  double y(double value) const {
    return kPanelTop + kPanelHeight * (y_range_.high - value) / (y_range_.high - y_range_.low);
  }
  std::string axes() const;
  std::string band(const Curve& curve) const;
  std::string line(const Curve& curve) const;

  const Panel& panel_;
  Range x_range_, y_range_;
};

std::string PanelDrawing::axes() const {
  const double right = panel_.left + kPanelWidth, bottom = kPanelTop + kPanelHeight;
  std::string svg;
  for (const double t : ticks_of(y_range_, 6)) {
    svg += fmt::format(
        "<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        std::abs(t) < 1e-12 ? "zero" : "grid", panel_.left, right, y(t), y(t));
    svg += fmt::format("<text text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                       panel_.left - 6, y(t) + 3.8, tick_text(t));
  }
  for (const double t : ticks_of(x_range_, 6)) {
    svg += fmt::format(
        "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n",
        x(t), bottom, bottom + 4);
    svg += fmt::format("<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x(t),
                       bottom + 16, tick_text(t));
  }
  svg += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}V{:.1f}H{:.1f}\"/>\n", panel_.left,
                     kPanelTop, bottom, right);
  svg += fmt::format(
      "<text text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">tokens trained on "
      "(millions)</text>\n",
      panel_.left + kPanelWidth / 2, bottom + 33);
  const double middle = kPanelTop + kPanelHeight / 2, at = panel_.left - 48;
  return svg + fmt::format(
                   "<text text-anchor=\"middle\" x=\"{0:.1f}\" y=\"{1:.1f}\" "
                   "transform=\"rotate(-90 {0:.1f} {1:.1f})\">{2}</text>\n",
                   at, middle, panel_.label);
}

std::string PanelDrawing::band(const Curve& curve) const {
  std::string points;
  for (const CurvePoint& point : curve.points) {
    points += fmt::format("{:.1f},{:.1f} ", x(point.tokens), y(point.value.highest));
  }
  for (auto point = curve.points.rbegin(); point != curve.points.rend(); ++point) {
    points += fmt::format("{:.1f},{:.1f} ", x(point->tokens), y(point->value.lowest));
  }
  return fmt::format("<polygon fill=\"{}\" fill-opacity=\"0.15\" points=\"{}\"/>\n",
                     curve.look.colour, points);
}

std::string PanelDrawing::line(const Curve& curve) const {
  std::string points;
  for (const CurvePoint& point : curve.points) {
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x(point.tokens),
                          y(point.value.mean));
  }
  return fmt::format("<polyline stroke=\"{}\" stroke-dasharray=\"{}\" points=\"{}\"/>\n",
                     curve.look.colour, curve.look.dashes, points);
}

std::string legend(const std::vector<Curve>& curves, double top) {
  std::string svg;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const double x = 64 + 270 * static_cast<double>(i % 3);
    const double y = top + kLegendRow * static_cast<double>(i / 3);
    svg += fmt::format(
        "<polyline stroke=\"{}\" stroke-dasharray=\"{}\" points=\"{:.1f},{:.1f} "
        "{:.1f},{:.1f}\"/>\n",
        curves[i].look.colour, curves[i].look.dashes, x, y - 4, x + 34, y - 4);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 41, y, curves[i].title);
  }
  return svg;
}

}  // namespace

std::string comparison_figure(const Comparison& comparison) {
  const CompareSettings& s = comparison.settings;
  const std::vector<ComparedRun>* base = nullptr;
  for (const ModelResult& result : comparison.models) {
    if (result.model.name == "c") base = &result.runs;
  }
  Panel losses{.left = 64, .label = "validation loss (nats per token)", .curves = {}};
  Panel differences{.left = 494, .label = "loss minus that of (c), same seed", .curves = {}};
  for (std::size_t i = 0; i < comparison.models.size(); ++i) {
    const ModelResult& result = comparison.models[i];
    if (result.runs.empty()) continue;
    const Look look = kLooks[i % kLooks.size()];
    const std::size_t count = result.runs.size();
    Curve curve{.title = fmt::format("{} ({} {})", result.model.title, count,
                                     count == 1 ? "seed" : "seeds"),
                .look = look,
                .points = curve_of(s, result.runs, nullptr)};
    if (curve.points.empty()) continue;
    losses.curves.push_back(curve);
    curve.points = curve_of(s, result.runs, base);
    if (!curve.points.empty()) differences.curves.push_back(std::move(curve));
  }
  if (losses.curves.empty()) return "";

  const auto total = static_cast<double>(s.steps * s.batch * s.seq) / 1e6;
  const Range tokens{.low = kFirstShown * total, .high = total};
  const double legend_top = kPanelTop + kPanelHeight + 58;
  const auto rows = static_cast<double>((losses.curves.size() + 2) / 3);
  const double height = legend_top + kLegendRow * (rows - 1) + 12;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"validation loss of the architectures over "
      "training, and its difference to (c)\">\n",
      kWidth, height);
  svg +=
      "<style>text{font:11.5px Helvetica,Arial,'Liberation Sans',sans-serif;fill:#1a1a1a}"
      "polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}"
      ".grid{stroke:#e3e3e3}.zero{stroke:#8a8a8a}.axis{stroke:#1a1a1a;fill:none}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  svg += PanelDrawing(losses, tokens).draw();
  if (!differences.curves.empty()) svg += PanelDrawing(differences, tokens).draw();
  return svg + legend(losses.curves, legend_top) + "</svg>\n";
}

std::filesystem::path write_figure(const std::filesystem::path& report,
                                   const Comparison& comparison) {
  std::filesystem::path file = report;
  file.replace_extension(".svg");
  if (file == report) {
    fail(ErrorKind::usage, "{}: the figure is written there; name the report otherwise, as .html",
         report.string());
  }
  const std::string svg = comparison_figure(comparison);
  if (svg.empty()) return {};
  atomic_write_file(file, svg);
  return file;
}

}  // namespace dsmoe::report
