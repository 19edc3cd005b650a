// Models for Python: text and tokens, answers, numbers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "binding.h"
#include "commands/eval_pairs.h"
#include "infer/load_model.h"
#include "infer/quantise.h"
#include "infer/sequence/trace.h"
#include "loaded_model.h"
#include "tensor/quantised.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::python {
namespace {

constexpr double kBetweenLooks = 0.05;  // seconds

std::vector<int32_t> encode(const LoadedModel& model, const std::string& text, bool add_special) {
  return model.text().encode(text,
                             add_special ? app::AroundText::special : app::AroundText::nothing);
}

nb::bytes decode(const LoadedModel& model, const std::vector<int32_t>& ids, bool skip_special) {
  model.text().require_tokenizer();
  const std::string text = model.text().tokenizer()->decode(
      ids, {.skip_special = skip_special ? text::SkipSpecial::yes : text::SkipSpecial::no,
            .ill_formed = text::IllFormed::replace});
  return nb::bytes(text.data(), text.size());
}

std::string render_chat(const LoadedModel& model, const std::string& messages,
                        bool add_generation_prompt, const std::string& extra) {
  if (!model.chat_template()) {
    fail(ErrorKind::input,
         "{}: no chat template in it; expected chat_template.jinja, or chat_template in "
         "tokenizer_config.json",
         model.folder());
  }
  const text::SpecialTokenTexts& special = model.text().special();
  return model.chat_template()->render({.messages = parse_ordered_json(messages, "messages"),
                                        .add_generation_prompt = add_generation_prompt,
                                        .bos_token = special.bos,
                                        .eos_token = special.eos,
                                        .extra = parse_ordered_json(extra, "variables")});
}

// Text as far as it has come: nothing at the end.
std::optional<std::string> next_piece(RunningAnswer& running) {
  const bool listens = hears_signals();
  std::string piece;
  for (;;) {
    Answer::State state;
    {
      const nb::gil_scoped_release release;
      state = running.answer().take(kBetweenLooks, piece);
    }
    if (state == Answer::State::has_text) return piece;
    if (state == Answer::State::ended) return std::nullopt;
    if (listens && PyErr_CheckSignals() != 0) {
      running.cancel();
      throw nb::python_error();
    }
  }
}

nb::dict facts_of(RunningAnswer& running) {
  const Answer& answer = running.answer();
  const infer::Finish finish = running.answer().finish();
  nb::dict facts;
  facts["tokens"] = answer.tokens();
  facts["finish_reason"] = std::string(infer::name_of(finish.reason));
  facts["stop"] = answer.stop();
  facts["prompt_tokens"] = running.prompt_tokens();
  facts["reused_tokens"] = finish.reused_tokens;
  const infer::Routes& routes = answer.routes();
  if (routes.top_k > 0) {
    const auto tokens = static_cast<std::size_t>(routes.num_tokens());
    const auto layers = static_cast<std::size_t>(routes.num_layers);
    const auto slots = static_cast<std::size_t>(routes.top_k);
    facts["routes"] = to_array(routes.index, {tokens, layers, slots});
    facts["gates"] = to_array(routes.gate, {tokens, layers, slots});
  }
  return facts;
}

nb::dict forward(
    LoadedModel& model, const TokenArray& ids, int64_t experts_per_token,
    const std::optional<nb::ndarray<const int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>>&
        replay,
    bool wants_hidden) {
  const model::ModelConfig& config = model.model().config;
  const auto tokens = ids.size();
  const auto top_k = static_cast<std::size_t>(infer::checked_top_k(config, experts_per_token));
  const auto layers = static_cast<std::size_t>(config.num_moe_layers());
  std::vector<float> logits, hidden;
  infer::Routes routes{.num_layers = config.num_moe_layers(), .top_k = static_cast<int64_t>(top_k)};
  run_interruptible([&](const std::atomic<bool>& cancelled) {
    logits.reserve(tokens * static_cast<std::size_t>(config.vocab_size));
    const auto take_logits = [&](std::span<const float> rows) {
      logits.insert(logits.end(), rows.begin(), rows.end());
    };
    const auto take_routes = [&](const infer::RoutesView& rows) { routes.append(rows); };
    const auto take_hidden = [&](std::span<const float> rows) {
      hidden.insert(hidden.end(), rows.begin(), rows.end());
    };
    const FunctionRef<void(std::span<const float>)> hidden_sink = take_hidden;
    infer::TraceOptions options{.top_k = experts_per_token, .cancelled = &cancelled};
    if (replay) options.replayed = {replay->data(), replay->size()};
    infer::trace_sequence(model.context(), model.model(), tokens_of(ids), options,
                          {.logits = take_logits,
                           .routes = take_routes,
                           .hidden = wants_hidden ? &hidden_sink : nullptr});
  });
  nb::dict result;
  result["logits"] =
      to_array(std::move(logits), {tokens, static_cast<std::size_t>(config.vocab_size)});
  result["routes"] = to_array(std::move(routes.index), {tokens, layers, top_k});
  result["gates"] = to_array(std::move(routes.gate), {tokens, layers, top_k});
  if (wants_hidden) {
    result["hidden"] =
        to_array(std::move(hidden), {tokens, static_cast<std::size_t>(config.hidden_size)});
  }
  return result;
}

using Score = std::tuple<double, bool, int64_t>;

std::vector<Score> score_pairs(LoadedModel& model, const std::vector<infer::TokenPair>& pairs,
                               std::optional<int64_t> prefix, int64_t experts_per_token) {
  std::vector<infer::JoinedPair> joined;
  std::vector<infer::ScoredDocument> documents;
  for (const infer::TokenPair& pair : pairs) {
    const std::string what = fmt::format("pair {}", joined.size());
    joined.push_back(infer::join_pair(pair, model.model().context, prefix, what));
    infer::check_tokens(model.model().config, joined.back().tokens, what);
  }
  for (const infer::JoinedPair& pair : joined)
    documents.push_back({pair.tokens, pair.first_target});
  std::vector<Score> scores;
  run_interruptible([&](const std::atomic<bool>& cancelled) {
    infer::score_documents(model.context(), model.model(), documents,
                           {.top_k = experts_per_token, .cancelled = &cancelled},
                           [&](int64_t, const infer::TokenScores& of_tokens) {
                             const infer::PairScore sum = infer::sum_scores(of_tokens);
                             scores.emplace_back(sum.log_likelihood, sum.greedy, sum.num_tokens);
                           });
  });
  return scores;
}

std::vector<Score> score_texts(LoadedModel& model,
                               const std::vector<std::pair<std::string, std::string>>& texts,
                               const std::string& bos, int64_t experts_per_token) {
  const app::PairBos rule = app::parse_pair_bos(bos);
  if (rule == app::PairBos::yes && !model.text().bos_token()) {
    fail(ErrorKind::input,
         "bos=\"yes\": the tokenizer has no BOS; tokenizer_config.json would name it as bos_token");
  }
  const app::PairEncoder encoder(model.text(), model.model().config, rule);
  std::vector<infer::TokenPair> pairs;
  for (const auto& [context, continuation] : texts) {
    pairs.push_back(encoder.encode(context, continuation));
  }
  return score_pairs(model, pairs, encoder.prefix(), experts_per_token);
}

std::vector<Score> score_ids(
    LoadedModel& model,
    const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>>& ids,
    int64_t experts_per_token) {
  std::vector<infer::TokenPair> pairs;
  for (const auto& [context, continuation] : ids) pairs.push_back({context, continuation});
  return score_pairs(model, pairs, model.text().prefix_token(model.model().config),
                     experts_per_token);
}

nb::dict evaluate(LoadedModel& model, const app::TokenStream& stream, int64_t window,
                  int64_t stride, int64_t experts_per_token) {
  app::StreamScore score;
  run_interruptible([&](const std::atomic<bool>& cancelled) {
    app::score_stream(
        model.context(), model.model(), stream,
        {.window = {.window = window, .stride = stride},
         .scorer = {.top_k = experts_per_token, .cancelled = &cancelled}},
        [](int64_t, int64_t) {}, score);
  });
  const app::StreamFigures figures = app::figures_of(stream, score);
  nb::dict result;
  result["tokens"] = stream.tokens.size();
  result["scored"] = score.scored;
  result["windows"] = score.windows;
  result["nats"] = score.nats;
  result["nats_per_token"] = figures.nats_per_token;
  result["perplexity"] = figures.perplexity;
  if (stream.num_bytes > 0) {
    result["bytes"] = stream.num_bytes;
    result["bits_per_byte"] = figures.bits_per_byte;
  }
  return result;
}

nb::dict evaluate_ids(LoadedModel& model, const TokenArray& ids, int64_t window, int64_t stride,
                      int64_t experts_per_token) {
  const auto tokens = tokens_of(ids);
  infer::check_tokens(model.model().config, tokens, "tokens");
  return evaluate(model, {.tokens = {tokens.begin(), tokens.end()}}, window, stride,
                  experts_per_token);
}

nb::dict evaluate_text(LoadedModel& model, const std::string& text, int64_t window, int64_t stride,
                       int64_t experts_per_token) {
  return evaluate(model, app::text_stream(model.text(), model.model().config, text, "text"), window,
                  stride, experts_per_token);
}

tensor::WeightCoding coding_of(const std::string& word, const char* what) {
  if (word == "int8") return tensor::WeightCoding::int8;
  if (word == "int4") return tensor::WeightCoding::int4;
  if (word == "stored") return tensor::WeightCoding::plain;
  fail(ErrorKind::usage, "{}=\"{}\": expected int8, int4 or stored", what, word);
}

std::vector<std::pair<std::string, double>> quantise(const std::string& source,
                                                     const std::string& target,
                                                     const std::string& to, const std::string& head,
                                                     int threads) {
  if (to == "stored") fail(ErrorKind::usage, "to=\"stored\": expected int8 or int4");
  const model::Quantization wanted{.projections = coding_of(to, "to"),
                                   .head = coding_of(head, "head")};
  std::vector<std::pair<std::string, double>> errors;
  run_interruptible([&](const std::atomic<bool>& cancelled) {
    const app::Engine machine({.model = source, .threads = threads});
    infer::quantise_folder(machine.context(), source, target,
                           {.quantization = wanted, .cancelled = &cancelled},
                           [&](const infer::QuantisedTensor& tensor) {
                             errors.emplace_back(tensor.name, tensor.error);
                           });
  });
  return errors;
}

// Python owns it.
RunningAnswer* start(LoadedModel& model, std::vector<int32_t> prompt, const nb::dict& options) {
  AnswerRequest request{.prompt = std::move(prompt)};
  const auto take = [&]<class T>(const char* name, T& value) {
    if (options.contains(name) && !options[name].is_none()) value = nb::cast<T>(options[name]);
  };
  const auto take_optional = [&]<class T>(const char* name, std::optional<T>& value) {
    if (options.contains(name) && !options[name].is_none()) value = nb::cast<T>(options[name]);
  };
  infer::SamplerOptions& sampler = request.sampler;
  take("max_tokens", request.max_tokens);
  take("temperature", sampler.temperature);
  take("top_k", sampler.top_k);
  take("top_p", sampler.top_p);
  take("min_p", sampler.min_p);
  take("repetition_penalty", sampler.repetition_penalty);
  take("presence_penalty", sampler.presence_penalty);
  take("frequency_penalty", sampler.frequency_penalty);
  std::vector<std::pair<int32_t, double>> bias;
  take("logit_bias", bias);
  for (const auto& [token, value] : bias) sampler.bias.push_back({token, value});
  take("seed", request.seed);
  take("choice", request.choice);
  take("stop", request.stops);
  take("ignore_eos", request.ignore_eos);
  take("experts_per_token", request.experts_per_token);
  take("routes", request.wants_routes);
  take("replay", request.replayed);
  take_optional("schema", request.schema);
  take_optional("regex", request.pattern);
  take("choices", request.choices);
  const nb::gil_scoped_release release;
  return new RunningAnswer(model, std::move(request));
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::class_<RunningAnswer>(module, "RunningAnswer", "An answer that is being written.")
      .def("next", &next_piece, "Text as far as it has come; None at the end.")
      .def("facts", &facts_of, "Of an answer that has ended.")
      .def("cancel", &RunningAnswer::cancel);

  nb::class_<LoadedModel>(module, "LoadedModel", "A model, its tokenizer and its engine.")
      .def(
          "__init__",
          [](LoadedModel* self, const std::string& path, const std::string& device,
             const std::string& dtype, const std::string& weights, int64_t context, int threads,
             bool cache, int64_t max_batch) {
            const LoadOptions options{.path = path,
                                      .device = device,
                                      .dtype = dtype,
                                      .weights = weights,
                                      .context = context,
                                      .threads = threads,
                                      .cache = cache,
                                      .max_batch = max_batch};
            run_interruptible([&](const std::atomic<bool>&) { new (self) LoadedModel(options); });
          },
          nb::arg("path"), nb::arg("device"), nb::arg("dtype"), nb::arg("weights"),
          nb::arg("context"), nb::arg("threads"), nb::arg("cache"), nb::arg("max_batch"))
      .def_prop_ro("folder", &LoadedModel::folder)
      .def_prop_ro("num_threads", &LoadedModel::num_threads)
      .def_prop_ro("context", [](const LoadedModel& m) { return m.model().context; })
      .def_prop_ro(
          "device",
          [](const LoadedModel& m) {
            return std::string(m.model().weights.device() == tensor::Device::cpu ? "cpu" : "cuda");
          })
      .def_prop_ro("dtype",
                   [](const LoadedModel& m) {
                     return std::string(m.model().operand == tensor::DType::BF16 ? "bf16" : "fp32");
                   })
      .def_prop_ro("weight_bytes",
                   [](const LoadedModel& m) { return m.model().weights.total_bytes(); })
      .def_prop_ro("config_json",
                   [](const LoadedModel& m) { return m.model().config.to_json().dump(); })
      .def_prop_ro("num_parameters",
                   [](const LoadedModel& m) { return m.model().config.num_parameters(); })
      .def_prop_ro("num_active_parameters",
                   [](const LoadedModel& m) { return m.model().config.num_active_parameters(); })
      .def_prop_ro("moe_layers",
                   [](const LoadedModel& m) { return infer::moe_layers(m.model().config); })
      .def_prop_ro("has_tokenizer", [](const LoadedModel& m) { return m.text().has_tokenizer(); })
      .def_prop_ro("has_chat_template",
                   [](const LoadedModel& m) { return m.chat_template().has_value(); })
      .def_prop_ro("bos_token_id", [](const LoadedModel& m) { return m.text().bos_token(); })
      .def_prop_ro("prefix_token_id",
                   [](const LoadedModel& m) { return m.text().prefix_token(m.model().config); })
      .def("encode", &encode, nb::arg("text"), nb::arg("add_special"))
      .def("decode", &decode, nb::arg("ids"), nb::arg("skip_special"))
      .def("render_chat", &render_chat, nb::arg("messages"), nb::arg("add_generation_prompt"),
           nb::arg("extra"))
      .def("start", &start, nb::arg("prompt"), nb::arg("options"), nb::rv_policy::take_ownership,
           nb::keep_alive<0, 1>())
      .def("forward", &forward, nb::arg("ids"), nb::arg("experts_per_token"),
           nb::arg("replay").none(), nb::arg("hidden"))
      .def("score_texts", &score_texts, nb::arg("pairs"), nb::arg("bos"),
           nb::arg("experts_per_token"))
      .def("score_ids", &score_ids, nb::arg("pairs"), nb::arg("experts_per_token"))
      .def("evaluate_ids", &evaluate_ids, nb::arg("ids"), nb::arg("window"), nb::arg("stride"),
           nb::arg("experts_per_token"))
      .def("evaluate_text", &evaluate_text, nb::arg("text"), nb::arg("window"), nb::arg("stride"),
           nb::arg("experts_per_token"));

  module.def("quantise", &quantise, nb::arg("source"), nb::arg("target"), nb::arg("to"),
             nb::arg("head"), nb::arg("threads"));
}

}  // namespace dsmoe::python
