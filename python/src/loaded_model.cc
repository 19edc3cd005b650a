// Loading, and requests to the engine.
#include "loaded_model.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "commands/model_choice.h"
#include "constrain/constraint.h"
#include "infer/quantise.h"
#include "kernels/cuda/cuda_table.h"

namespace dsmoe::python {
namespace {

// Far more than anybody submits at once: whoever calls waits for answers anyway.
constexpr int64_t kMaxQueue = 1 << 20;

app::CommonOptions common_options(const LoadOptions& options) {
  const bool uses_gpu =
      options.device == "cuda" || (options.device == "auto" && kernels::cuda_declined().empty());
  return {.model = app::choose_model(options.path, app::kModelFolder).folder,
          .threads = options.threads,
          .dtype = options.dtype,
          .context = options.context,
          .device = uses_gpu ? "cuda" : "cpu",
          .cache = options.cache};
}

std::shared_ptr<const constrain::Constraint> constraint_of(const AnswerRequest& request,
                                                           const LoadedModel& model) {
  using constrain::Shape;
  std::optional<Shape> shape;
  if (request.schema) {
    shape = Shape::schema(parse_ordered_json(*request.schema, "schema"), "schema");
  } else if (request.pattern) {
    shape = Shape::regex(*request.pattern, "pattern");
  } else if (!request.choices.empty()) {
    shape = Shape::choice(request.choices, "choices");
  }
  if (!shape) return nullptr;
  return std::make_shared<const constrain::Constraint>(
      *shape, model.text().vocabulary(model.model().config.vocab_size));
}

// As they are stored, or quantised on their way in.
std::unique_ptr<model::Model> load_weights(const app::Engine& machine,
                                           const app::CommonOptions& common,
                                           const std::string& weights) {
  if (weights.empty()) return machine.load(common);
  if (common.cache) {
    fail(ErrorKind::usage,
         "cache=True keeps weights as they are stored; write the quantised folder with "
         "quantise() and load that");
  }
  infer::LoadOptions load{.context = common.context};
  if (common.dtype == "bf16") load.operand = tensor::DType::BF16;
  if (common.dtype == "fp32") load.operand = tensor::DType::F32;
  return infer::load_quantised(
      machine.context(), common.model,
      {.projections = weights == "int4" ? tensor::WeightCoding::int4 : tensor::WeightCoding::int8,
       .head = tensor::WeightCoding::int8},
      load);
}

infer::EngineRequest engine_request(LoadedModel& model, AnswerRequest& request) {
  const model::ModelConfig& config = model.model().config;
  infer::EngineRequest made{.sampler = std::move(request.sampler),
                            .seed = request.seed,
                            .choice = request.choice,
                            .constraint = constraint_of(request, model),
                            .experts_per_token = request.experts_per_token,
                            .wants_routes = request.wants_routes};
  if (!request.ignore_eos) {
    for (const int64_t id : config.eos_token_ids) made.stop_ids.push_back(static_cast<int32_t>(id));
  }
  if (!request.replayed.empty()) {
    made.replayed = std::make_shared<const std::vector<int32_t>>(std::move(request.replayed));
  }
  const int64_t room = model.model().context + 1 - static_cast<int64_t>(request.prompt.size());
  if (room < 1) {
    fail(ErrorKind::input, "a prompt of {} tokens does not fit into the context of {}",
         request.prompt.size(), model.model().context);
  }
  made.max_tokens = request.max_tokens > 0 ? std::min(request.max_tokens, room) : room;
  made.prompt = std::move(request.prompt);
  return made;
}

}  // namespace

LoadedModel::LoadedModel(const LoadOptions& options)
    : options_(common_options(options)), max_batch_(options.max_batch), machine_(options_) {
  if (max_batch_ < 1 || max_batch_ > 4096) {
    fail(ErrorKind::usage, "max_batch is {}; expected 1 to 4096 answers that run together",
         max_batch_);
  }
  text_ = std::make_unique<app::TextSide>(options_.model);
  chat_template_ = text::load_chat_template(options_.model);
  model_ = load_weights(machine_, options_, options.weights);
}

infer::Engine& LoadedModel::engine() {
  const std::lock_guard lock(mutex_);
  if (engine_ == nullptr) {
    engine_ = std::make_unique<infer::Engine>(
        machine_.context(), *model_,
        infer::EngineOptions{.max_batch = max_batch_,
                             .max_queue = kMaxQueue,
                             .chunk_tokens = std::max<int64_t>(256, max_batch_)});
  }
  return *engine_;
}

RunningAnswer::RunningAnswer(LoadedModel& model, AnswerRequest request)
    : engine_(model.engine()),
      answer_(std::make_shared<Answer>(model.text(), std::move(request.stops))),
      prompt_tokens_(static_cast<int64_t>(request.prompt.size())) {
  infer::EngineRequest made = engine_request(model, request);
  made.sink = answer_;
  std::vector<infer::EngineRequest> requests;
  requests.push_back(std::move(made));
  const infer::Engine::Submission submission = engine_.submit(std::move(requests));
  if (submission.admission != infer::Admission::accepted) {
    fail(ErrorKind::resource, "{}",
         submission.admission == infer::Admission::full
             ? "too many answers wait already; try again later"
             : "the engine has stopped; load the model again");
  }
  id_ = submission.ids.front();
}

RunningAnswer::~RunningAnswer() { cancel(); }

void RunningAnswer::cancel() { engine_.cancel({&id_, 1}); }

}  // namespace dsmoe::python
