// Training for Python: the job of `dsmoe train`, one step at a time.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "binding.h"
#include "commands/train_job.h"
#include "model/config.h"

namespace dsmoe::python {
namespace {

std::unique_ptr<data::MemoryCorpus> corpus_of(const std::vector<TokenArray>& documents,
                                              int64_t vocab_size) {
  auto corpus = std::make_unique<data::MemoryCorpus>(vocab_size, std::vector<std::string>{"ids"});
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const auto tokens = tokens_of(documents[d]);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
      fail(ErrorKind::input, "data: document {}, token {} has id {}, the vocabulary holds 0 to {}",
           d, i, tokens[i], vocab_size - 1);
    }
    if (tokens.empty()) fail(ErrorKind::input, "data: document {} has no tokens", d);
    corpus->add({.tokens = {tokens.begin(), tokens.end()}});
  }
  return corpus;
}

void put(nb::dict& into, const char* name, const train::Measured& measured,
         const std::vector<std::string>& sources) {
  if (!measured.validation) return;
  into[name] = measured.validation->loss;
  if (measured.validation->bits_per_byte) {
    into["validation_bits_per_byte"] = *measured.validation->bits_per_byte;
  }
  if (sources.size() < 2) return;
  nb::dict by_source;
  for (std::size_t i = 0; i < sources.size() && i < measured.validation->sources.size(); ++i) {
    if (const auto& loss = measured.validation->sources[i]) by_source[sources[i].c_str()] = *loss;
  }
  into["validation_source_losses"] = by_source;
}

// What a step tells, under the names of metrics.jsonl.
struct Step {
  train::StepMetrics metrics;
  train::StepResult result;
};

nb::dict dict_of(const Step& step) {
  const train::StepMetrics& metrics = step.metrics;
  const train::StepResult& result = step.result;
  nb::dict line;
  line["step"] = metrics.step;
  line["loss"] = result.language;
  line["balance_loss"] = result.balance;
  line["device_balance_loss"] = result.device_balance;
  line["z_loss"] = result.z;
  line["lr"] = metrics.lr;
  line["gradient_norm"] = result.gradient_norm;
  line["tokens"] = result.tokens;
  line["seconds"] = metrics.seconds;
  line["wall_seconds"] = metrics.wall_seconds;
  line["epoch"] = metrics.epoch;
  put(line, "validation_loss", metrics.measured, {});
  if (metrics.first.validation) line["first_validation_loss"] = metrics.first.validation->loss;
  for (const train::Figure& figure : metrics.measured.figures) {
    line[figure.name.c_str()] = figure.value;
  }
  if (result.load.empty()) return line;
  std::vector<int64_t> load;
  for (const auto& layer : result.load) load.insert(load.end(), layer.begin(), layer.end());
  line["load"] = to_array(std::move(load), {result.load.size(), result.load.front().size()});
  return line;
}

class Trainer {
 public:
  Trainer(const std::vector<std::string>& words,
          const std::optional<std::vector<TokenArray>>& documents) {
    app::TrainOptions options;
    app::Given given = app::parse_words(
        words, [&](app::CommandLine& line) { app::add_train_flags(line, options); });
    given.words.insert(given.words.begin(), "dsmoe.train");
    std::unique_ptr<data::MemoryCorpus> ids;
    if (documents) ids = corpus_of(*documents, vocab_size_of(options));
    run_interruptible([&](const std::atomic<bool>& cancelled) {
      job_.emplace(options, given,
                   app::TrainJob::Caller{.cancelled = &cancelled,
                                         .hooks = [&](int64_t total) { return hooks(total); },
                                         .ids = std::move(ids),
                                         .stopped = "stopped by the program that trained"});
    });
  }

  // A step that has begun is done to its end: what Ctrl-C raises comes behind it.
  std::optional<nb::dict> advance() {
    bool went_on = false;
    run_interruptible([&](const std::atomic<bool>&) { went_on = job_->advance(); });
    if (!went_on) return std::nullopt;
    return dict_of(step_);
  }

  nb::dict evaluate() {
    train::Measured measured;
    run_interruptible([&](const std::atomic<bool>&) { measured = job_->measure(); });
    nb::dict result;
    put(result, "validation_loss", measured, job_->outcome().sources);
    for (const train::Figure& figure : measured.figures) {
      result[figure.name.c_str()] = figure.value;
    }
    return result;
  }

  std::string save() {
    std::string folder;
    run_interruptible([&](const std::atomic<bool>&) { folder = job_->save().string(); });
    return folder;
  }

  void close() {
    const nb::gil_scoped_release release;
    job_.reset();
  }

  bool is_open() const { return job_.has_value(); }
  int64_t total_steps() const { return total_; }
  int64_t steps_done() const { return job_->outcome().steps_done; }
  bool finished() const { return job_->outcome().finished; }
  std::string out() const { return job_->options().run.out.string(); }
  std::string checkpoint() const { return job_->outcome().checkpoint.string(); }

 private:
  static int64_t vocab_size_of(const app::TrainOptions& options) {
    const std::string& path = options.config.empty() ? options.init : options.config;
    if (path.empty()) {
      fail(ErrorKind::usage,
           "give config=\"config.json\", or init=\"MODEL\" to go on from a model");
    }
    return model::read_config(path).vocab_size;
  }

  train::RunHooks hooks(int64_t total) {
    total_ = total;
    return {.on_step = [this](const train::StepMetrics& metrics, const train::StepResult& result) {
      step_ = {metrics, result};
    }};
  }

  std::optional<app::TrainJob> job_;
  Step step_;
  int64_t total_ = 0;
};

}  // namespace

void bind_training(nb::module_& module) {
  nb::class_<Trainer>(module, "Trainer", "A training run, one step at a time.")
      .def(nb::init<const std::vector<std::string>&,
                    const std::optional<std::vector<TokenArray>>&>(),
           nb::arg("words"), nb::arg("documents").none())
      .def("advance", &Trainer::advance)
      .def("evaluate", &Trainer::evaluate)
      .def("save", &Trainer::save)
      .def("close", &Trainer::close)
      .def_prop_ro("is_open", &Trainer::is_open)
      .def_prop_ro("total_steps", &Trainer::total_steps)
      .def_prop_ro("steps_done", &Trainer::steps_done)
      .def_prop_ro("finished", &Trainer::finished)
      .def_prop_ro("out", &Trainer::out)
      .def_prop_ro("checkpoint", &Trainer::checkpoint);
}

}  // namespace dsmoe::python
