// Fields that other servers have too, spellings of paths, and the shape of answers.
#include <gtest/gtest.h>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

class FieldsTest : public SmallServerTest {
 protected:
  static std::string prompt_of(const Json& body) {
    const Answer answer = server().post("/apply-template", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["prompt"];
  }
};

Json completion(const Json& more = Json::object()) {
  Json body{{"prompt", "The cat"}, {"max_tokens", 6}, {"temperature", 0}};
  body.update(more);
  return body;
}

Json chat(const Json& more = Json::object()) {
  Json body{{"messages", {{{"role", "user"}, {"content", "The cat"}}}},
            {"max_tokens", 6},
            {"temperature", 0}};
  body.update(more);
  return body;
}

std::vector<std::string> keys_of(const std::string& text) {
  std::vector<std::string> keys;
  const OrderedJson json = OrderedJson::parse(text);
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST_F(FieldsTest, PathsMayLackTheVersionOrHaveASlashTooMany) {
  for (const char* path : {"/chat/completions", "//v1/chat/completions", "/v1//chat/completions",
                           "/v1/chat/completions/", "/v1/v1/chat/completions"}) {
    EXPECT_EQ(server().post(path, chat()).status, 200) << path;
  }
  for (const char* path :
       {"/models", "/v1/models/", "/models/small", "/v1/health", "/v1/version"}) {
    EXPECT_EQ(server().get(path).status, 200) << path;
  }
  EXPECT_EQ(server().post("/v1/tokenize", {{"prompt", "x"}}).status, 200);
  EXPECT_EQ(server().get("/chat/completions").status, 405);
  const Answer missing = server().get("/v1/nothing");
  EXPECT_EQ(missing.status, 404);
  const std::string message = missing.json()["error"]["message"];
  for (const char* part : {"\"/v1/nothing\"", "POST /v1/chat/completions", "GET /v1/models"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_F(FieldsTest, KeysComeInTheOrderOfOpenAi) {
  const std::vector<std::string> answer{
      "id", "object", "created", "model", "choices", "system_fingerprint", "seed", "usage"};
  const Answer plain = server().chat(chat({{"logprobs", true}}));
  EXPECT_EQ(keys_of(plain.body), answer);
  const OrderedJson choice = OrderedJson::parse(plain.body)["choices"][0];
  EXPECT_EQ(keys_of(choice.dump()),
            (std::vector<std::string>{"index", "message", "logprobs", "finish_reason"}));
  EXPECT_EQ(choice["message"].dump().find("{\"role\":\"assistant\",\"content\":"), 0u);
  EXPECT_TRUE(choice["message"]["refusal"].is_null());
  EXPECT_TRUE(choice["message"].contains("refusal"));
  EXPECT_TRUE(choice["logprobs"].contains("refusal"));
  EXPECT_EQ(keys_of(server().complete(completion()).body), answer);
}

TEST_F(FieldsTest, TokenIdsOfAPromptStandWhereVllmPutsThem) {
  const Json ids{{"return_token_ids", true}};
  const Json text = server().complete(completion(ids)).json();
  EXPECT_TRUE(text["choices"][0].contains("prompt_token_ids"));
  const Json plain = server().chat(chat(ids)).json();
  EXPECT_FALSE(plain["choices"][0].contains("prompt_token_ids"));
  ASSERT_TRUE(plain["prompt_token_ids"].is_array());
  EXPECT_EQ(plain["choices"][0]["token_ids"].size(), 6u);
  Json streamed = chat(ids);
  streamed["stream"] = true;
  Json prompt, answer = Json::array();
  for (const Json& event : server().chat(streamed).events()) {
    if (event.contains("prompt_token_ids")) prompt = event["prompt_token_ids"];
    for (const Json& id : event["choices"][0].value("token_ids", Json::array())) {
      answer.push_back(id);
    }
  }
  EXPECT_EQ(prompt, plain["prompt_token_ids"]);
  EXPECT_EQ(answer, plain["choices"][0]["token_ids"]);
}

TEST_F(FieldsTest, AnEmptyStopIsNone) {
  const Json without = server().complete(completion()).json()["choices"];
  EXPECT_EQ(server().complete(completion({{"stop", ""}})).json()["choices"], without);
}

TEST_F(FieldsTest, AStopStringCanBePartOfTheAnswer) {
  const std::string whole =
      server()
          .complete(completion({{"logit_bias", {{"36", 100}, {"37", 99}}}, {"max_tokens", 4}}))
          .json()["choices"][0]["text"];
  const std::string stop = whole.substr(1, 1);
  Json body = completion({{"logit_bias", {{"36", 100}, {"37", 99}}}, {"max_tokens", 4}});
  body["stop"] = stop;
  EXPECT_EQ(server().complete(body).json()["choices"][0]["text"],
            whole.substr(0, whole.find(stop)));
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(server().complete(body).json()["choices"][0]["text"],
            whole.substr(0, whole.find(stop) + 1));
}

TEST_F(FieldsTest, SpecialTokensCanBeShown) {
  Json body = completion({{"logit_bias", {{"0", 100}}}, {"max_tokens", 2}});
  EXPECT_EQ(server().complete(body).json()["choices"][0]["text"], "");
  body["skip_special_tokens"] = false;
  EXPECT_EQ(server().complete(body).json()["choices"][0]["text"], "<|begin|><|begin|>");
}

TEST_F(FieldsTest, ThePromptsBeginCanBeLeftOutOrCutAway) {
  const auto prompt_ids = [&](const Json& more) {
    Json body = completion({{"return_token_ids", true}});
    body.update(more);
    return server().complete(body).json()["choices"][0]["prompt_token_ids"];
  };
  const Json whole = prompt_ids(Json::object());
  EXPECT_EQ(whole[0], 0);
  const Json without = prompt_ids({{"add_special_tokens", false}});
  EXPECT_EQ(without.size(), whole.size() - 1);
  EXPECT_EQ(prompt_ids({{"truncate_prompt_tokens", 2}}),
            (Json{whole[whole.size() - 2], whole.back()}));
  EXPECT_EQ(prompt_ids({{"truncate_prompt_tokens", 100}}), whole);
  std::string long_text;
  for (int i = 0; i < 300; ++i) long_text += "zq ";
  EXPECT_EQ(prompt_ids({{"truncate_prompt_tokens", -1}, {"prompt", long_text}}).size(), 251u);
}

TEST_F(FieldsTest, PromptLogprobsAreThoseOfAnEcho) {
  const Json echoed =
      server().complete(completion({{"echo", true}, {"logprobs", 2}})).json()["choices"][0];
  for (const bool is_chat : {false, true}) {
    Json body = is_chat ? chat() : completion();
    body["prompt_logprobs"] = 2;
    body["return_token_ids"] = true;
    const Json answer = (is_chat ? server().chat(body) : server().complete(body)).json();
    const Json& scores =
        is_chat ? answer["prompt_logprobs"] : answer["choices"][0]["prompt_logprobs"];
    const Json& ids =
        is_chat ? answer["prompt_token_ids"] : answer["choices"][0]["prompt_token_ids"];
    ASSERT_EQ(scores.size(), ids.size());
    EXPECT_TRUE(scores[0].is_null());
    EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
    for (std::size_t i = 1; i < scores.size(); ++i) {
      const Json own = scores[i][std::to_string(ids[i].get<int>())];
      EXPECT_GE(scores[i].size(), 2u);
      EXPECT_LE(scores[i].size(), 3u);
      int64_t likelier = 0;
      for (const auto& [id, entry] : scores[i].items())
        likelier += entry["logprob"] > own["logprob"];
      EXPECT_GE(own["rank"], likelier + 1);
      if (!is_chat) {
        EXPECT_EQ(own["logprob"], echoed["logprobs"]["token_logprobs"][i]);
      }
    }
  }
}

TEST_F(FieldsTest, LogprobsCanNameTokensByTheirIds) {
  const Json chosen = server()
                          .chat(chat({{"logprobs", true},
                                      {"return_tokens_as_token_ids", true},
                                      {"return_token_ids", true}}))
                          .json()["choices"][0];
  EXPECT_EQ(chosen["logprobs"]["content"][0]["token"],
            "token_id:" + std::to_string(chosen["token_ids"][0].get<int>()));
}

TEST_F(FieldsTest, TemplatesAreRenderedAsAsked) {
  EXPECT_EQ(prompt_of(chat()), "<|begin|>User: The cat\n\nAssistant:");
  EXPECT_EQ(prompt_of(chat({{"add_generation_prompt", false}})), "<|begin|>User: The cat\n\n");
  const Json messages{{{"role", "user"}, {"content", "The"}},
                      {{"role", "assistant"}, {"content", " cat sat "}}};
  const Json going_on{{"messages", messages}, {"continue_final_message", true}};
  EXPECT_EQ(prompt_of(going_on), "<|begin|>User: The\n\nAssistant:  cat sat ");
  EXPECT_EQ(server().chat(going_on).status, 200);
  Json both = going_on;
  both["add_generation_prompt"] = true;
  EXPECT_EQ(server().chat(both).json()["error"]["param"], "continue_final_message");
  const Answer own = server().chat(chat({{"chat_template_kwargs", {{"messages", 1}}}}));
  EXPECT_EQ(own.json()["error"]["param"], "chat_template_kwargs.messages");
}

}  // namespace
}  // namespace dsmoe::testing
