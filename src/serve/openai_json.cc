// Scores and routes -> JSON.
#include "serve/openai_json.h"

#include <fmt/core.h>

#include <algorithm>

namespace dsmoe::serve {
namespace {

OrderedJson bytes_of(const std::string& text) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

std::string name_of(const ServedModel& model, int32_t token, const LogprobForm& form) {
  return form.tokens_as_ids ? fmt::format("token_id:{}", token) : model.token_text(token);
}

auto likeliest(const infer::TokenScore& score, const LogprobForm& form) {
  return std::span(score.top).first(
      std::min(score.top.size(), static_cast<std::size_t>(std::max(0, form.num_top))));
}

OrderedJson chat_entry(const ServedModel& model, const LogprobForm& form, int32_t token,
                       float log_prob) {
  return {{"token", name_of(model, token, form)},
          {"logprob", log_prob},
          {"bytes", bytes_of(model.token_bytes(token))}};
}

template <class T>
OrderedJson nested(const std::vector<T>& values, const std::vector<int32_t>& index,
                   int64_t num_tokens, const RouteShape& shape) {
  OrderedJson tokens = OrderedJson::array();
  std::size_t at = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    OrderedJson layers = OrderedJson::array();
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      OrderedJson slots = OrderedJson::array();
      for (int64_t k = 0; k < shape.top_k; ++k, ++at) {
        if (index[at] >= 0) slots.push_back(values[at]);
      }
      layers.push_back(std::move(slots));
    }
    tokens.push_back(std::move(layers));
  }
  return tokens;
}

}  // namespace

int64_t count_characters(const std::string& utf8) {
  int64_t count = 0;
  for (const char c : utf8) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

OrderedJson completion_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens,
                                const LogprobForm& form) {
  OrderedJson json{{"tokens", OrderedJson::array()},
                   {"token_logprobs", OrderedJson::array()},
                   {"top_logprobs", OrderedJson::array()},
                   {"text_offset", OrderedJson::array()}};
  for (const ScoredToken& token : tokens) {
    const std::string text = name_of(model, token.token, form);
    json["tokens"].push_back(text);
    json["text_offset"].push_back(token.text_offset);
    if (token.score == nullptr) {
      json["token_logprobs"].push_back(nullptr);
      json["top_logprobs"].push_back(nullptr);
      continue;
    }
    OrderedJson top = OrderedJson::object();
    for (const auto& [id, log_prob] : likeliest(*token.score, form)) {
      const auto [entry, is_new] = top.emplace(name_of(model, id, form), log_prob);
      (void)entry, (void)is_new;  // two ids of one text: the likelier stays
    }
    top[text] = token.score->log_prob;
    json["token_logprobs"].push_back(token.score->log_prob);
    json["top_logprobs"].push_back(std::move(top));
  }
  return json;
}

OrderedJson chat_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens,
                          const LogprobForm& form) {
  OrderedJson content = OrderedJson::array();
  for (const ScoredToken& token : tokens) {
    OrderedJson entry = chat_entry(model, form, token.token, token.score->log_prob);
    entry["top_logprobs"] = OrderedJson::array();
    for (const auto& [id, log_prob] : likeliest(*token.score, form)) {
      entry["top_logprobs"].push_back(chat_entry(model, form, id, log_prob));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson prompt_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens,
                            const LogprobForm& form) {
  OrderedJson list = OrderedJson::array();
  for (const ScoredToken& token : tokens) {
    if (token.score == nullptr) {
      list.push_back(nullptr);
      continue;
    }
    OrderedJson entries = OrderedJson::object();
    const auto add = [&](int32_t id, float log_prob, int64_t rank) {
      entries[std::to_string(id)] = {
          {"logprob", log_prob}, {"rank", rank}, {"decoded_token", model.token_text(id)}};
    };
    add(token.token, token.score->log_prob, token.score->rank);
    int64_t rank = 0;
    for (const auto& [id, log_prob] : likeliest(*token.score, form)) {
      if (++rank; id != token.token) add(id, log_prob, rank);
    }
    list.push_back(std::move(entries));
  }
  return list;
}

void add_routes(OrderedJson& choice, const RouteRecord& routes, const RouteShape& shape,
                WithGates gates) {
  choice["routed_start"] = routes.first_position;
  choice["routed_experts"] = nested(routes.index, routes.index, routes.num_tokens, shape);
  if (gates == WithGates::yes) {
    choice["routed_gates"] = nested(routes.gate, routes.index, routes.num_tokens, shape);
  }
}

}  // namespace dsmoe::serve
