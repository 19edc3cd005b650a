// Scores and routes -> JSON.
#include "serve/answer_json.h"

namespace dsmoe::serve {
namespace {

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json chat_entry(const ServedModel& model, int32_t token, float log_prob) {
  return {{"token", model.token_text(token)},
          {"logprob", log_prob},
          {"bytes", bytes_of(model.token_bytes(token))}};
}

template <class T>
Json nested(const std::vector<T>& values, const std::vector<int32_t>& index, int64_t num_tokens,
            const RouteShape& shape) {
  Json tokens = Json::array();
  std::size_t at = 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    Json layers = Json::array();
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      Json slots = Json::array();
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

Json completion_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens) {
  Json json{{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
  for (const ScoredToken& token : tokens) {
    const std::string text = model.token_text(token.token);
    json["tokens"].push_back(text);
    json["text_offset"].push_back(token.text_offset);
    if (token.score == nullptr) {
      json["token_logprobs"].push_back(nullptr);
      json["top_logprobs"].push_back(nullptr);
      continue;
    }
    Json top = Json::object();
    for (const auto& [id, log_prob] : token.score->top) {
      const auto [entry, is_new] = top.emplace(model.token_text(id), log_prob);
      (void)entry, (void)is_new;  // two ids of one text: the likelier stays
    }
    top[text] = token.score->log_prob;
    json["token_logprobs"].push_back(token.score->log_prob);
    json["top_logprobs"].push_back(std::move(top));
  }
  return json;
}

Json chat_logprobs(const ServedModel& model, std::span<const ScoredToken> tokens) {
  Json content = Json::array();
  for (const ScoredToken& token : tokens) {
    Json entry = chat_entry(model, token.token, token.score->log_prob);
    entry["top_logprobs"] = Json::array();
    for (const auto& [id, log_prob] : token.score->top) {
      entry["top_logprobs"].push_back(chat_entry(model, id, log_prob));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

void add_routes(Json& choice, const RouteRecord& routes, const RouteShape& shape, WithGates gates) {
  choice["routed_start"] = routes.first_position;
  choice["routed_experts"] = nested(routes.index, routes.index, routes.num_tokens, shape);
  if (gates == WithGates::yes) {
    choice["routed_gates"] = nested(routes.gate, routes.index, routes.num_tokens, shape);
  }
}

}  // namespace dsmoe::serve
