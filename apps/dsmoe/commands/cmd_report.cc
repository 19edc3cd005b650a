// dsmoe report: one HTML file about a run or a comparison.
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/comparison_figure.h"
#include "report/comparison_text.h"
#include "report/run_report.h"
#include "report/runs_report.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

struct ReportOptions {
  CommonOptions common;
  std::vector<std::string> runs;
  report::RunReportRequest request;
  std::string out;
};

void check_folder(const std::filesystem::path& folder) {
  constexpr std::string_view kWriters = "that dsmoe train, demo or compare wrote";
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    fail(ErrorKind::io, "{}: no such folder; expected one {}", folder.string(), kWriters);
  }
  if (std::filesystem::exists(folder / "metrics.jsonl", ignored)) return;
  const std::filesystem::path above = std::filesystem::absolute(folder).lexically_normal() / "..";
  const bool is_inside = std::filesystem::exists(above / "metrics.jsonl", ignored);
  fail(ErrorKind::input, "{}: no metrics.jsonl in it; expected a folder {}{}", folder.string(),
       kWriters, is_inside ? "; the folder above it is one" : "");
}

int report_of_runs(const ReportOptions& options) {
  std::vector<std::filesystem::path> folders(options.runs.begin(), options.runs.end());
  for (const std::filesystem::path& folder : folders) check_folder(folder);
  const std::string file = options.out.empty() ? "report.html" : options.out;
  report::write_report(file, report::runs_report(folders));
  if (options.common.json) {
    print_json({{"report", file}});
  } else {
    print("{}\n", file);
  }
  return kDone;
}

int run_report_command(const ReportOptions& options) {
  if (options.common.quiet) set_log_level(LogLevel::quiet);
  if (options.runs.size() > 1) return report_of_runs(options);
  const std::filesystem::path folder = options.runs.front();
  const std::filesystem::path file =
      options.out.empty() ? report::report_path(folder) : std::filesystem::path(options.out);
  const InterruptScope interrupt;
  OrderedJson data;
  std::filesystem::path figure;
  if (std::filesystem::exists(folder / report::kCompareFile)) {
    const report::Comparison comparison = report::read_comparison(folder);
    data = report::comparison_report(comparison);
    figure = report::write_figure(file, comparison);
  } else {
    check_folder(folder);
    Engine engine(options.common);
    report::RunReportRequest request = options.request;
    request.run = folder;
    request.cancelled = &InterruptScope::flag();
    data = report::run_report(engine.context(), request);
  }
  if (InterruptScope::flag()) return kInterrupted;
  report::write_report(file, data);
  if (options.common.json) {
    OrderedJson json{{"report", file.string()}};
    if (!figure.empty()) json["figure"] = figure.string();
    print_json(json);
  } else {
    print("{}\n", file.string());
    if (!figure.empty()) print("{}\n", figure.string());
  }
  return kDone;
}

}  // namespace

void add_report(CommandLine& app) {
  auto options = std::make_shared<ReportOptions>();
  CommandLine command = app.command("report", "One HTML file about a training run or a comparison");
  command
      .option("run", options->runs,
              "folder of dsmoe train, demo or compare; several training runs are put on one page")
      .required()
      .type("RUN");
  command
      .option("-o,--out", options->out,
              "default: RUN/report.html, of several runs report.html here")
      .type("FILE");
  command
      .option("--data", options->request.data,
              "files or folders to show which experts read which; default: what the run trained on")
      .type("FILE");
  command.option("--max-tokens", options->request.max_tokens, "read so many of them")
      .range(int64_t{2}, int64_t{1} << 26)
      .show_default();
  command.option("--samples", options->request.num_samples, "texts to draw; 0: none")
      .range(int64_t{0}, int64_t{100})
      .show_default();
  add_machine_flags(command, options->common);
  add_output_flags(command, options->common);
  command.footer(
      "The file holds everything it shows and asks nothing of the network. A run may still be\n"
      "going on: what it has logged and saved so far is shown.\n\n"
      "Examples:\n  dsmoe report demo-out\n  dsmoe report run --data novels.txt code.txt\n"
      "  dsmoe report first second third -o all.html");
  command.runs([options] { return run_report_command(*options); });
}

}  // namespace dsmoe::app
