// dsmoe bench: how fast a model reads prompts and generates here, beside the machine's own limits.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/log.h"
#include "base/readable.h"
#include "bench/bench_layers.h"
#include "bench/bench_limits.h"
#include "bench/bench_model.h"
#include "bench/bench_run.h"
#include "commands/command.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace dsmoe::app {
namespace {

struct BenchCommand {
  CommonOptions common;
  int64_t prompt = 512, generate = 64;  // tokens; 0: leave that test out
  std::vector<int64_t> batches = {1};
  int64_t repetitions = 5;
  double slice = 0;  // seconds of each measurement
  RandomModel random;
  bool no_limits = false;
  std::vector<int64_t> layer_tokens;
};

struct Result {
  BenchTest test;
  BenchCost cost;
  std::vector<double> rates;  // tokens per second
  double floor = 0;           // seconds that the limits allow at best; 0: no limits
  bool reading = false;       // the floor is that of reading, not of multiplying

  double rate() const { return kernels::cpu::median_of(rates); }
  double spread() const {
    double mean = 0, squares = 0;
    for (const double rate : rates) mean += rate / static_cast<double>(rates.size());
    for (const double rate : rates) squares += (rate - mean) * (rate - mean);
    return rates.size() > 1 ? std::sqrt(squares / static_cast<double>(rates.size() - 1)) : 0;
  }
  double share() const { return floor * rate() / static_cast<double>(test.tokens * test.batch); }
};

std::vector<BenchTest> tests_of(const BenchCommand& command) {
  std::vector<BenchTest> tests;
  if (command.prompt > 0) tests.push_back({BenchTest::Kind::prompt, command.prompt, 1});
  if (command.generate > 0) {
    for (const int64_t batch : command.batches) {
      tests.push_back({BenchTest::Kind::generate, command.generate, batch});
    }
  }
  return tests;
}

bool interrupted() { return InterruptScope::flag().load(); }

// Probe and product take turns, so that both meet the same moods of the machine.
Result measure(const BenchCommand& command, BenchRun& bench, const BenchTest& test,
               BenchLimits* limits) {
  Result result{.test = test, .cost = bench.cost(test)};
  bench.run(test);
  for (int64_t i = 0; i < command.repetitions && !interrupted(); ++i) {
    if (limits != nullptr) limits->measure(command.slice);
    double seconds = 0;
    do {
      const double once = bench.run(test);
      seconds += once;
      result.rates.push_back(static_cast<double>(test.tokens * test.batch) / once);
    } while (seconds < command.slice && !interrupted());
  }
  if (limits != nullptr && limits->bandwidth() > 0) {
    const double reading = result.cost.bytes / limits->bandwidth();
    const double multiplying = limits->matrix() > 0 ? result.cost.flops / limits->matrix() : 0;
    result.reading = reading >= multiplying;
    result.floor = std::max(reading, multiplying);
  }
  return result;
}

struct Heading {
  std::string model, backend;
  double bytes = 0;
  int64_t parameters = 0;
  int threads = 0;  // 0: does not apply
};

// What all tests have in common first: with it in every row a table would not fit a terminal.
void print_heading(const Heading& heading) {
  print("{}: {} parameters, {}; {}", heading.model,
        human_number(static_cast<double>(heading.parameters)), human_bytes(heading.bytes),
        heading.backend);
  if (heading.threads > 0)
    print(", {} {}", heading.threads, heading.threads == 1 ? "thread" : "threads");
  print("\n\n| {:<10} | {:>19} | {:<20} |\n", "test", "tokens/s", "share of the limit");
  print("| {:-<10} | {:->18}: | {:-<20} |\n", "", "", "");
}

void print_result(const Result& result) {
  std::string share;
  if (result.floor > 0) {
    share = fmt::format("{:.0f} % of {}", 100 * result.share(),
                        result.reading ? "reading" : "multiplying");
  }
  print("| {:<10} | {:>19} | {:<20} |\n", result.test.name(),
        fmt::format("{:.2f} ± {:.2f}", result.rate(), result.spread()), share);
  flush_output();
}

OrderedJson json_of(const Result& result) {
  OrderedJson json{{"test", result.test.kind == BenchTest::Kind::prompt ? "prompt" : "generate"},
                   {"tokens", result.test.tokens},
                   {"batch", result.test.batch},
                   {"tokens_per_second", result.rate()},
                   {"standard_deviation", result.spread()},
                   {"samples", result.rates},
                   {"bytes_read_at_least", result.cost.bytes},
                   {"flops", result.cost.flops},
                   {"experts_per_layer", result.cost.experts_per_layer}};
  if (result.floor > 0) {
    json["share_of_limit"] = result.share();
    json["limited_by"] = result.reading ? "reading" : "multiplying";
  }
  return json;
}

OrderedJson json_of(const LayerFigure& figure, const GpuLimits& limits) {
  OrderedJson json{{"tokens", figure.tokens},
                   {"seconds", figure.seconds},
                   {"experts", figure.experts},
                   {"share_of_copy_bandwidth", figure.bytes / figure.seconds / limits.copy},
                   {"flops_per_second", figure.flops / figure.seconds}};
  if (figure.dense_seconds > 0) {
    json["dense_seconds"] = figure.dense_seconds;
    json["share_of_dense"] = figure.dense_seconds / figure.seconds;
  }
  return json;
}

void print_layers(const std::vector<LayerFigure>& figures, const GpuLimits& limits) {
  print("\none MoE layer, forward\n");
  print("| {:>7} | {:>10} | {:>10} | {:>9} | {:>15} | {:>9} | {:>8} |\n", "tokens", "layer us",
        "dense us", "of dense", "of copy speed", "TFLOP/s", "experts");
  print("| {:->6}: | {:->9}: | {:->9}: | {:->8}: | {:->14}: | {:->8}: | {:->7}: |\n", "", "", "",
        "", "", "", "");
  for (const LayerFigure& figure : figures) {
    const bool dense = figure.dense_seconds > 0;
    print("| {:>7} | {:>10.1f} | {:>10} | {:>9} | {:>13.0f} % | {:>9.1f} | {:>8} |\n",
          figure.tokens, figure.seconds * 1e6,
          dense ? fmt::format("{:.1f}", figure.dense_seconds * 1e6) : std::string("-"),
          dense ? fmt::format("{:.0f} %", 100 * figure.dense_seconds / figure.seconds)
                : std::string("-"),
          100 * figure.bytes / figure.seconds / limits.copy, figure.flops / figure.seconds / 1e12,
          figure.experts);
  }
}

LayerShape layer_shape(const model::ModelConfig& config) {
  return {.hidden = config.hidden_size,
          .experts = config.n_routed_experts,
          .top_k = config.num_experts_per_tok,
          .width = config.moe_intermediate_size,
          .shared_width = config.shared_width()};
}

int run_bench(const BenchCommand& command) {
  if (command.common.quiet) set_log_level(LogLevel::quiet);
  const std::vector<BenchTest> tests = tests_of(command);
  if (tests.empty() && command.layer_tokens.empty()) {
    fail(ErrorKind::usage, "nothing to measure: --prompt and --generate are 0");
  }
  Engine engine(command.common);
  const BenchModel bench_model = load_bench_model(engine, command.common, command.random);
  const model::Model& model = *bench_model.model;
  for (const BenchTest& test : tests) {
    if (test.tokens > model.context) {
      fail(ErrorKind::usage, "{} tokens do not fit into the context of {}; see --context",
           test.tokens, model.context);
    }
  }
  const bool gpu = engine.context().table->device == kernels::Device::cuda;
  const InterruptScope interrupt;
  std::optional<BenchLimits> limits;
  if (!command.no_limits) limits.emplace(engine.context(), model.operand);
  const Heading heading{.model = bench_model.name + " " + bench_model.weights,
                        .backend = std::string(engine.context().table->name),
                        .bytes = weight_bytes(model),
                        .parameters = model.config.num_parameters(),
                        .threads = gpu ? 0 : engine.pool().num_threads()};
  OrderedJson results = OrderedJson::array();
  if (!tests.empty()) {
    BenchRun bench(engine.context(), model, tests);
    if (!command.common.json) print_heading(heading);
    for (const BenchTest& test : tests) {
      const Result result = measure(command, bench, test, limits ? &*limits : nullptr);
      if (interrupted()) return kInterrupted;
      if (command.common.json) results.push_back(json_of(result));
      if (!command.common.json) print_result(result);
    }
  }
  std::vector<LayerFigure> figures;
  if (gpu && limits && model.config.num_moe_layers() > 0) {
    limits->measure(command.slice);
    for (const int64_t tokens : command.layer_tokens) {
      if (interrupted()) return kInterrupted;
      figures.push_back(measure_layer(engine.context(), layer_shape(model.config), tokens));
    }
  }
  if (!command.common.json) {
    if (!figures.empty()) print_layers(figures, *limits->gpu());
    if (limits) print("\nlimits: {}\n", limits->describe());
    return kDone;
  }
  OrderedJson json{{"model", bench_model.name},  {"weights", bench_model.weights},
                   {"bytes", heading.bytes},     {"parameters", heading.parameters},
                   {"backend", heading.backend}, {"threads", heading.threads},
                   {"results", results}};
  if (limits) {
    json["limits"] = {{"bytes_per_second", limits->bandwidth()},
                      {"flops_per_second", limits->matrix()},
                      {"how", limits->describe()}};
  }
  for (const LayerFigure& figure : figures) {
    json["layers"].push_back(json_of(figure, *limits->gpu()));
  }
  print_json(json);
  return kDone;
}

}  // namespace

void add_bench(CommandLine& app) {
  auto options = std::make_shared<BenchCommand>();
  CommandLine command =
      app.command("bench", "Tokens per second, and the share of the machine's limit");
  add_model_argument(command, options->common,
                     "model folder, or a config.json (then with random weights)");
  command.option("--prompt", options->prompt, "tokens of the prompt test; 0: none")
      .range(int64_t{0}, int64_t{1} << 20)
      .type("N")
      .show_default();
  command.option("--generate", options->generate, "tokens of the generation test; 0: none")
      .range(int64_t{0}, int64_t{1} << 20)
      .type("N")
      .show_default();
  command
      .option("--batch", options->batches,
              "sequences that generate at once; default: 1; several: --batch 1,8,32")
      .comma_separated()
      .range(int64_t{1}, int64_t{4096})
      .type("N");
  command.option("--repetitions", options->repetitions, "measurements of each test")
      .range(int64_t{1}, int64_t{10000})
      .type("N")
      .show_default();
  command
      .option("--slice", options->slice,
              "seconds of each measurement at least, and of the probes before it")
      .range(0.0, 3600.0)
      .type("SECONDS");
  command
      .option("--layers", options->random.num_layers,
              "with random weights: only the first N layers of the model")
      .range(int64_t{1}, int64_t{1} << 16)
      .type("N");
  command
      .option("--weights", options->random.weights,
              "with random weights: bf16, int8 or int4; default: bf16")
      .one_of({"bf16", "int8", "int4"})
      .type("FORMAT");
  command.flag("--no-limits", options->no_limits,
               "do not measure the machine's limits (up to 4 GiB of memory)");
  command
      .option("--layer-tokens", options->layer_tokens,
              "on CUDA: also one MoE layer at these numbers of tokens, beside dense products")
      .comma_separated()
      .range(int64_t{1}, int64_t{1} << 18)
      .type("N");
  add_output_flags(command, options->common);
  add_run_flags(command, options->common);
  command.footer(
      "The limit of a test is the larger of bytes / bandwidth and FLOPs / matrix rate, counting "
      "only\n"
      "bytes that must be read; both are measured between the runs. A careful measurement: --slice "
      "2\n"
      "--repetitions 15.\n\n"
      "Examples:\n"
      "  dsmoe bench my-model/ --batch 1,8,32\n"
      "  dsmoe bench configs/deepseek-moe-16b.json --layers 6 --json\n"
      "  dsmoe bench configs/deepseek-moe-16b.json --weights int4\n"
      "  dsmoe bench configs/deepseek-moe-16b.json --device cuda \\\n"
      "    --layer-tokens 1,64,4096");
  command.runs([options] { return run_bench(*options); });
}

}  // namespace dsmoe::app
