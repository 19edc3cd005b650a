// The routes that answer at once: health, models, tokens, experts.
#include <algorithm>
#include <charconv>

#include "base/engine_version.h"
#include "base/utf8.h"
#include "serve/api.h"
#include "serve/api_error.h"
#include "serve/chat_dialect.h"
#include "serve/chat_prompt.h"
#include "serve/completion_request.h"
#include "serve/json_field.h"
#include "serve/unsupported_field.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxTokenizeBytes = std::size_t{4} << 20;

std::optional<int64_t> query_integer(const HttpRequest& request, const char* name,
                                     IntegerRange range) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return std::nullopt;
  int64_t value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [rest, error] = std::from_chars(found->second.data(), end, value);
  if (error != std::errc() || rest != end || value < range.low || value > range.high) {
    refuse(name, "{}: expected an integer from {} to {}", name, range.low, range.high);
  }
  return value;
}

infer::ExpertLoad::Order query_order(const HttpRequest& request) {
  using Order = infer::ExpertLoad::Order;
  const auto found = request.query.find("sort");
  if (found == request.query.end() || found->second == "count") return Order::count;
  if (found->second == "lift") return Order::lift;
  refuse("sort", "sort: expected count or lift");
}

// As llama.cpp has it: a text, or bytes where those of the token alone are none.
OrderedJson with_pieces(const std::vector<int32_t>& tokens, const ServedModel& model) {
  OrderedJson list = OrderedJson::array();
  for (const int32_t id : tokens) {
    const std::string bytes = model.token_bytes(id);
    OrderedJson piece = bytes;
    if (!is_valid_utf8(bytes)) {
      piece = OrderedJson::array();
      for (const char c : bytes) piece.push_back(static_cast<unsigned char>(c));
    }
    list.push_back({{"id", id}, {"piece", std::move(piece)}});
  }
  return list;
}

}  // namespace

void Api::show_training(const TrainingProgress& progress) {
  const std::lock_guard lock(training_mutex_);
  training_ = progress;
  training_curve_.add(progress.step, progress.loss);
}

OrderedJson Api::loading_json() {
  OrderedJson json{{"status", "loading"}};
  const std::lock_guard lock(training_mutex_);
  if (training_) {
    json["training"] = {{"step", training_->step},
                        {"total", training_->total},
                        {"loss", training_->loss},
                        {"seconds_left", training_->seconds_left},
                        {"curve", OrderedJson::array()}};
    for (const LossCurve::Point& point : training_curve_.points()) {
      json["training"]["curve"].push_back(OrderedJson::array({point.step, point.loss}));
    }
  }
  return json;
}

HttpResponse Api::health(const HttpRequest&) {
  const ServedModel* model = model_.load();
  if (model != nullptr && !model->engine().is_alive()) {
    return json_response({{"status", "engine dead"}}, 503);
  }
  if (draining_) return json_response({{"status", "draining"}}, 503);
  if (model == nullptr) return json_response(loading_json(), 503);
  return json_response({{"status", "ok"}});
}

OrderedJson Api::model_json() const {
  const model::ModelConfig& config = model().config();
  return {{"id", model().id()},
          {"object", "model"},
          {"created", model().created()},
          {"owned_by", "dsmoe"},
          {"max_model_len", model().context()},
          {"num_experts", model().engine().load().num_experts()},
          {"num_experts_per_tok", config.num_experts_per_tok},
          {"max_experts_per_tok", model().engine().limits().max_top_k},
          {"moe_layers", model().engine().load().layers()},
          {"has_chat_template", model().text().chat_template.has_value()}};
}

HttpResponse Api::models(const HttpRequest&) {
  return json_response({{"object", "list"}, {"data", OrderedJson::array({model_json()})}});
}

HttpResponse Api::one_model(const HttpRequest& request) {
  model().check_name(request.path.substr(std::string_view("/v1/models/").size()));
  return json_response(model_json());
}

HttpResponse Api::version(const HttpRequest&) {
  return json_response({{"version", DSMOE_VERSION}, {"engine_version", kEngineVersion}});
}

HttpResponse Api::metrics_text(const HttpRequest&) {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = metrics_.text(model().engine())};
}

HttpResponse Api::apply_template(const HttpRequest& request) {
  JsonOwner owner(parse_body(request.body));
  model().check_name(string_field(*owner, "model", 4096).value_or(""));
  return json_response({{"prompt", render_chat(read_chat(*owner, request.body), model())}});
}

// Counts the tokens of what would be the prompt of /v1/messages.
HttpResponse Api::count_tokens(const HttpRequest& request) {
  const TranslatedChat chat = translate_messages(request.body, MessagesFor::a_count);
  JsonOwner owner(parse_body(chat.body));
  model().check_name(string_field(*owner, "model", 4096).value_or(""));
  const std::string prompt = render_chat(read_chat(*owner, chat.body), model());
  return json_response({{"input_tokens", model().encode(prompt, text::AddSpecial::no).size()}});
}

// A text, or the prompt that a chat becomes.
HttpResponse Api::tokenize(const HttpRequest& request) {
  JsonOwner owner(parse_body(request.body));
  const Json& body = *owner;
  refuse_unsupported(body, unsupported_tokenize_fields());
  const bool is_chat = find_field(body, "messages") != nullptr;
  auto text = string_field(body, "prompt", kMaxTokenizeBytes);
  if (!text) text = string_field(body, "content", kMaxTokenizeBytes);
  if (is_chat) text = render_chat(read_chat(body, request.body), model());
  if (!text) refuse("prompt", "prompt: expected a string, it is missing");
  model().check_name(string_field(body, "model", 4096).value_or(""));
  // A template writes its own first token; and llama.cpp, whose word `content` is, adds none.
  bool adds = find_field(body, "prompt") != nullptr && !is_chat;
  for (const char* name : {"add_special_tokens", "add_special"}) {
    if (find_field(body, name) != nullptr) adds = bool_field(body, name);
  }
  const std::vector<int32_t> tokens =
      model().encode(*text, adds ? text::AddSpecial::yes : text::AddSpecial::no);
  OrderedJson answer{{"count", tokens.size()}, {"max_model_len", model().context()}};
  answer["tokens"] = tokens;
  if (bool_field(body, "return_token_strs")) {
    answer["token_strs"] = OrderedJson::array();
    for (const int32_t id : tokens) answer["token_strs"].push_back(model().token_text(id));
  }
  if (bool_field(body, "with_pieces")) answer["tokens"] = with_pieces(tokens, model());
  return json_response(answer);
}

HttpResponse Api::detokenize(const HttpRequest& request) {
  JsonOwner owner(parse_body(request.body));
  const Json& body = *owner;
  const Json* tokens = find_field(body, "tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    refuse("tokens", "tokens: expected a list of token ids, got {}",
           tokens == nullptr ? "nothing" : kind_of(*tokens));
  }
  model().check_name(string_field(body, "model", 4096).value_or(""));
  // A token of one byte in the body may be a hundred bytes of text.
  const auto most = static_cast<std::size_t>(model().context()) + 1;
  if (tokens->size() > most) {
    refuse("tokens", "tokens: {} ids, at most {} are possible", tokens->size(), most);
  }
  TextStream stream(model(), text::SkipSpecial::no);
  std::string text;
  for (const Json& id : *tokens) {
    text += stream.push(
        static_cast<int32_t>(as_integer(id, "tokens", {0, model().config().vocab_size - 1})));
  }
  text += stream.finish();
  return json_response({{"prompt", text}, {"content", text}});  // vLLM's name, and llama.cpp's
}

HttpResponse Api::tokenizer_info(const HttpRequest&) {
  const TextParts& text = model().text();
  const auto or_null = [](const std::optional<std::string>& value) {
    return value ? OrderedJson(*value) : OrderedJson();
  };
  return json_response(
      {{"bos_token", or_null(text.special.bos)},
       {"eos_token", or_null(text.special.eos)},
       {"pad_token", or_null(text.special.pad)},
       {"unk_token", or_null(text.special.unk)},
       {"chat_template",
        text.chat_template ? OrderedJson(text.chat_template->source()) : OrderedJson()},
       {"vocab_size", text.tokenizer ? OrderedJson(text.tokenizer->vocab_size()) : OrderedJson()},
       {"max_model_len", model().context()}});
}

HttpResponse Api::experts(const HttpRequest&) {
  const infer::ExpertLoad& load = model().engine().load();
  const infer::ExpertLoad::Window window = load.window();
  OrderedJson layers = OrderedJson::array();
  for (const auto& layer : window.layers) {
    int64_t sum = 0;
    for (const int64_t count : layer.chosen) sum += count;
    const double fair = static_cast<double>(sum) / static_cast<double>(load.num_experts());
    OrderedJson ratio = OrderedJson::array();
    double most = 0;
    for (const int64_t count : layer.chosen) {
      ratio.push_back(sum > 0 ? static_cast<double>(count) / fair : 0);
      most = std::max(most, ratio.back().get<double>());
    }
    layers.push_back({{"layer", layer.layer},
                      {"num_experts", load.num_experts()},
                      {"tokens", layer.chosen},
                      {"first", layer.first},
                      {"ratio", std::move(ratio)},
                      {"max_ratio", most}});
  }
  return json_response({{"object", "expert_load"},
                        {"num_experts_per_tok", model().config().num_experts_per_tok},
                        {"max_experts_per_tok", model().engine().limits().max_top_k},
                        {"window", {{"seconds", window.seconds}, {"tokens", window.tokens}}},
                        {"layers", std::move(layers)}});
}

HttpResponse Api::reset_experts(const HttpRequest& request) {
  model().engine().load().reset();
  return experts(request);
}

HttpResponse Api::expert_tokens(const HttpRequest& request) {
  const infer::ExpertLoad& load = model().engine().load();
  const auto layer = query_integer(request, "layer", {0, 1 << 20});
  const auto place = std::find(load.layers().begin(), load.layers().end(), layer.value_or(-1));
  if (place == load.layers().end()) {
    refuse("layer", "layer: expected the number of an MoE layer, see /v1/models");
  }
  const auto layer_idx = static_cast<std::size_t>(place - load.layers().begin());
  const auto expert = query_integer(request, "expert", {0, load.num_experts() - 1});
  const infer::ExpertLoad::TokenQuery query{
      .limit = query_integer(request, "limit", {1, 1000}).value_or(expert ? 20 : 8),
      .min_count = query_integer(request, "min_count", {1, 1 << 30}).value_or(1),
      .order = query_order(request)};
  const infer::ExpertLoad::Window window = load.window();
  const auto entry = [&](int64_t e) {
    const int64_t total = window.layers[layer_idx].chosen[static_cast<std::size_t>(e)];
    OrderedJson tokens = OrderedJson::array();
    for (const auto& count : load.top_tokens(layer_idx, e, query)) {
      const double share =
          static_cast<double>(count.count) / static_cast<double>(std::max<int64_t>(1, total));
      const double expected = static_cast<double>(count.seen) /
                              static_cast<double>(std::max<int64_t>(1, window.tokens));
      tokens.push_back({{"id", count.token},
                        {"text", model().token_text(count.token)},
                        {"count", count.count},
                        {"share", share},
                        {"lift", expected > 0 ? share / expected : 0}});
    }
    return OrderedJson{{"expert", e}, {"total", total}, {"tokens", std::move(tokens)}};
  };
  OrderedJson answer{{"object", "expert_tokens"}, {"layer", *layer}};
  if (expert) {
    answer.update(entry(*expert));
    return json_response(answer);
  }
  answer["experts"] = OrderedJson::array();
  for (int64_t e = 0; e < load.num_experts(); ++e) answer["experts"].push_back(entry(e));
  return json_response(answer);
}

}  // namespace dsmoe::serve
