// Answers that may not hold some texts, or only some tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

class RestrictedTest : public SmallServerTest {
 protected:
  static Json choice_of(const Json& body) {
    const Answer answer = server().complete(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? answer.json()["choices"][0] : Json();
  }
};

Json sampled(int seed, const Json& more = Json::object()) {
  Json body{{"prompt", "The cat"}, {"max_tokens", 60}, {"temperature", 1}, {"seed", seed}};
  body.update(more);
  return body;
}

TEST_F(RestrictedTest, AnAnswerHoldsNoneOfTheTexts) {
  int num_seen = 0;
  for (int seed = 0; seed < 10; ++seed) {
    const std::string free = choice_of(sampled(seed))["text"];
    ASSERT_GT(free.size(), 12u);
    // Parts of what it would have said, whatever tokens they were.
    Json words = Json::array({"e", "the", " "});
    for (const std::size_t at : {std::size_t{2}, free.size() / 2}) {
      const std::string part = free.substr(at, 3);
      const bool is_ascii = std::all_of(part.begin(), part.end(), [](char c) { return c > 0; });
      if (is_ascii) words.push_back(part);
    }
    for (const char* name : {"bad_words", "banned_strings"}) {
      const std::string text = choice_of(sampled(seed, {{name, words}}))["text"];
      for (const std::string word : words) {
        EXPECT_EQ(text.find(word), std::string::npos) << word << " in " << text;
        num_seen += free.find(word) != std::string::npos ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_seen, 30);  // without the field they come
}

TEST_F(RestrictedTest, StreamsChoicesAndScoresAreTheSame) {
  const Json rules{{"bad_words", {"e", "a"}}};
  Json body = sampled(4, rules);
  body["n"] = 3;
  body["logprobs"] = 1;
  const Json plain = server().complete(body).json()["choices"];
  ASSERT_EQ(plain.size(), 3u);
  EXPECT_EQ(choice_of(sampled(4, rules))["text"], plain[0]["text"]);
  body["stream"] = true;
  std::vector<std::string> texts(3);
  for (const Json& event : server().complete(body).events()) {
    for (const Json& choice : event["choices"]) {
      texts[choice["index"].get<std::size_t>()] += choice["text"].get<std::string>();
    }
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[i], plain[i]["text"]);
}

TEST_F(RestrictedTest, OnlyTheAllowedTokensCome) {
  const std::set<int> allowed{36, 37, 40, 90};
  const Json more{{"allowed_token_ids", allowed}, {"return_token_ids", true}};
  std::set<int> seen;
  for (int seed = 0; seed < 5; ++seed) {
    const Json choice = choice_of(sampled(seed, more));
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["token_ids"].size(), 60u);
    for (const int id : choice["token_ids"]) seen.insert(id);
  }
  EXPECT_EQ(seen, allowed);
  // The likeliest of them.
  Json greedy = sampled(0, {{"allowed_token_ids", {36}}, {"return_token_ids", true}});
  greedy["temperature"] = 0;
  greedy["max_tokens"] = 3;
  EXPECT_EQ(choice_of(greedy)["token_ids"], (Json{36, 36, 36}));
}

TEST_F(RestrictedTest, WhereNoTokenIsLeftTheAnswerEnds) {
  // The end of text alone: it comes at once, and before min_tokens nothing does.
  for (const int least : {0, 5}) {
    const Json choice = choice_of(sampled(1, {{"allowed_token_ids", {1}}, {"min_tokens", least}}));
    EXPECT_EQ(choice["text"], "");
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  const std::string token = server().post("/detokenize", {{"tokens", {36}}}).json()["prompt"];
  const Json banned = choice_of(sampled(1, {{"allowed_token_ids", {36}}, {"bad_words", {token}}}));
  EXPECT_EQ(banned["text"], "");
  EXPECT_EQ(banned["finish_reason"], "stop");
}

TEST_F(RestrictedTest, ChatsAndOtherFormsHaveThemToo) {
  const Json messages{{{"role", "user"}, {"content", "The cat"}}};
  const Json rules{{"bad_words", {"e", "a", "o", "t"}}, {"seed", 3}, {"temperature", 1}};
  Json chat{{"messages", messages}, {"max_tokens", 40}};
  chat.update(rules);
  const std::string said = server().chat(chat).json()["choices"][0]["message"]["content"];
  EXPECT_EQ(said.find_first_of("eaot"), std::string::npos) << said;
  EXPECT_EQ(server().post("/v1/messages", chat).json()["content"][0]["text"], said);
  Json response{{"input", "The cat"}, {"max_output_tokens", 40}};
  response.update(rules);
  EXPECT_EQ(server().post("/v1/responses", response).json()["output"][0]["content"][0]["text"],
            said);
}

TEST_F(RestrictedTest, NotBesideAFormAndNotOutOfRange) {
  const auto param = [&](const Json& more) {
    const Answer answer = server().complete(sampled(1, more));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"]["param"];
  };
  EXPECT_EQ(param({{"bad_words", {"x"}}, {"guided_regex", "a+"}}), "bad_words");
  EXPECT_EQ(param({{"banned_strings", {"x"}}, {"guided_regex", "a+"}}), "banned_strings");
  EXPECT_EQ(param({{"allowed_token_ids", {5}}, {"guided_json", Json::object()}}),
            "allowed_token_ids");
  EXPECT_EQ(param({{"allowed_token_ids", {300}}}), "allowed_token_ids");
  EXPECT_EQ(param({{"allowed_token_ids", {-1}}}), "allowed_token_ids");
  EXPECT_EQ(param({{"bad_words", "x"}}), "bad_words");
  EXPECT_EQ(param({{"bad_words", {""}}}), "bad_words");
  EXPECT_EQ(param({{"bad_words", {std::string(257, 'x')}}}), "bad_words");
  EXPECT_EQ(param({{"bad_words", Json(129, "x")}}), "bad_words");
}

}  // namespace
}  // namespace dsmoe::testing
