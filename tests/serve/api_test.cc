// The API as clients use it, on a small model in this process.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <thread>

#include "base/engine_version.h"
#include "base/log.h"
#include "base/scratch_folder.h"
#include "infer/measure/evaluate.h"
#include "kernels/table.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

class ApiTest : public SmallServerTest {};

Json greedy(const Json& more = Json::object()) {
  Json body{{"model", "small"}, {"prompt", "The cat"}, {"max_tokens", 12}, {"temperature", 0}};
  body.update(more);
  return body;
}

TEST_F(ApiTest, PlainAndStreamedCompletionsSayTheSame) {
  for (const Json& more : {Json{{"temperature", 0}}, Json{{"temperature", 1.3}, {"seed", 5}}}) {
    const Answer plain = server().complete(greedy(more));
    ASSERT_EQ(plain.status, 200) << plain.body;
    const Json answer = plain.json();
    EXPECT_TRUE(answer["id"].get<std::string>().starts_with("cmpl-"));
    EXPECT_EQ(answer["object"], "text_completion");
    EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
    Json streamed = greedy(more);
    streamed["stream"] = true;
    streamed["stream_options"] = {{"include_usage", true}};
    const Answer stream = server().complete(streamed);
    ASSERT_EQ(stream.status, 200);
    EXPECT_TRUE(stream.is_done());
    EXPECT_TRUE(stream.headers.at("content-type").starts_with("text/event-stream"));
    std::string text;
    const std::vector<Json> events = stream.events();
    for (const Json& event : events) {
      if (!event["choices"].empty()) text += event["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text, answer["choices"][0]["text"]);
    EXPECT_TRUE(events.back()["choices"].empty());
    EXPECT_EQ(events.back()["usage"]["completion_tokens"], 12);
    EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  }
}

TEST_F(ApiTest, TheSeedOfAnAnswerCanBeSentAgain) {
  const int64_t lowest = std::numeric_limits<int64_t>::min();
  for (const Json& seed : {Json(-1), Json(lowest), Json(7), Json()}) {
    const Json first = server().complete(greedy({{"temperature", 1}, {"seed", seed}})).json();
    if (!seed.is_null()) {
      EXPECT_EQ(first["seed"], seed);
    }
    const Answer again = server().complete(greedy({{"temperature", 1}, {"seed", first["seed"]}}));
    ASSERT_EQ(again.status, 200) << again.body;
    EXPECT_EQ(again.json()["choices"], first["choices"]);
  }
}

TEST_F(ApiTest, ChatPlainAndStreamed) {
  Json body{{"messages",
             {{{"role", "system"}, {"content", "Be brief."}},
              {{"role", "user"},
               {"content",
                {{{"type", "text"}, {"text", "The "}}, {{"type", "text"}, {"text", "dog"}}}}}}},
            {"max_completion_tokens", 10},
            {"temperature", 0},
            {"logprobs", true},
            {"top_logprobs", 3}};
  const Answer plain = server().chat(body);
  ASSERT_EQ(plain.status, 200) << plain.body;
  const Json choice = plain.json()["choices"][0];
  EXPECT_TRUE(plain.json()["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(choice["message"]["role"], "assistant");
  ASSERT_EQ(choice["logprobs"]["content"].size(), 10u);
  const Json first = choice["logprobs"]["content"][0];
  EXPECT_EQ(first["top_logprobs"].size(), 3u);
  EXPECT_EQ(first["logprob"], first["top_logprobs"][0]["logprob"]);  // greedy
  body["stream"] = true;
  const Answer stream = server().chat(body);
  std::string text;
  std::size_t scores = 0;
  const std::vector<Json> events = stream.events();
  EXPECT_EQ(events[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    const Json& each = event["choices"][0];
    text += each["delta"].value("content", "");
    if (!each["logprobs"].is_null()) scores += each["logprobs"]["content"].size();
  }
  EXPECT_EQ(text, choice["message"]["content"]);
  EXPECT_EQ(scores, 10u);
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "length");
}

// Its name is for the operator's eyes.
TEST_F(ApiTest, ATemplatesErrorTellsNoFileName) {
  const ScratchFolder scratch;
  const auto file = scratch / "secret.jinja";
  std::ofstream(file) << "{{ raise_exception('not like this') }}";
  const serve::TextParts parts = serve::load_text_parts(scratch.path(), file);
  try {
    (void)parts.chat_template->render({});
    FAIL() << "it was rendered";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("not like this"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find("secret"), std::string::npos) << e.what();
  }
}

// The harness drops the last score, which is the answer's: that of an end is one like others.
TEST_F(ApiTest, LmEvalFormHasItsAnswersScoreWhereThatIsTheEnd) {
  const Json body{{"model", "small"},          {"prompt", {5, 9, 270}}, {"temperature", 0},
                  {"max_tokens", 1},           {"logprobs", 1},         {"echo", true},
                  {"logit_bias", {{"1", 100}}}};
  const Answer answer = server().complete(body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json logprobs = answer.json()["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["token_logprobs"].size(), 4u);
  EXPECT_EQ(logprobs["top_logprobs"].size(), 4u);
}

TEST_F(ApiTest, LmEvalFormEqualsEvaluation) {
  const std::vector<int32_t> tokens{5, 9, 270, 33, 260, 101, 7};
  const Json body{{"model", "small"}, {"prompt", Json::array({tokens, {4, 8, 15}})},
                  {"temperature", 0}, {"max_tokens", 1},
                  {"logprobs", 1},    {"echo", true},
                  {"seed", 1234}};
  const Answer answer = server().complete(body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json choices = answer.json()["choices"];
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[1]["index"], 1);
  const Json logprobs = choices[0]["logprobs"];
  ASSERT_EQ(logprobs["token_logprobs"].size(), tokens.size() + 1);
  ASSERT_EQ(logprobs["top_logprobs"].size(), tokens.size() + 1);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  ThreadPool pool(1);
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  infer::score_documents(
      context, server().model(), std::vector<infer::ScoredDocument>{{tokens, 1}}, {},
      [&](int64_t, const infer::TokenScores& scores) {
        for (std::size_t i = 0; i < scores.log_prob.size(); ++i) {
          const auto ours = logprobs["token_logprobs"][i + 1].get<double>();
          EXPECT_NEAR(ours, scores.log_prob[i], 1e-5);
          double best = -1e9;
          bool holds_own = false;
          for (const auto& [text, value] : logprobs["top_logprobs"][i + 1].items()) {
            best = std::max(best, value.get<double>());
            holds_own = holds_own || value == logprobs["token_logprobs"][i + 1];
          }
          EXPECT_TRUE(holds_own);
          EXPECT_EQ(best == ours, scores.greedy[i] != 0);
        }
      });
  Json none = body;
  none["max_tokens"] = 0;
  const Json scored = server().complete(none).json();
  EXPECT_EQ(scored["choices"][0]["logprobs"]["token_logprobs"].size(), tokens.size());
}

TEST_F(ApiTest, SeveralChoicesAndPromptForms) {
  const Json three = server().complete(greedy({{"n", 3}, {"temperature", 1}, {"seed", 1}})).json();
  ASSERT_EQ(three["choices"].size(), 3u);
  EXPECT_NE(three["choices"][0]["text"], three["choices"][1]["text"]);
  EXPECT_EQ(three["usage"]["completion_tokens"], 36);
  const Json one = server().complete(greedy({{"temperature", 1}, {"seed", 1}})).json();
  EXPECT_EQ(one["choices"][0]["text"], three["choices"][0]["text"]);
  const Json both = server().complete(greedy({{"prompt", {"The cat", "The dog"}}})).json();
  EXPECT_EQ(both["choices"][0]["text"], server().complete(greedy()).json()["choices"][0]["text"]);
  // Drawn or not: what else is in the list, and where, does not matter.
  const Json list =
      server()
          .complete(greedy({{"prompt", {"The dog", "The cat"}}, {"temperature", 1}, {"seed", 1}}))
          .json();
  EXPECT_EQ(list["choices"][1]["text"], one["choices"][0]["text"]);
  const Json ids = server().post("/tokenize", {{"prompt", "The cat"}}).json();
  EXPECT_EQ(ids["tokens"][0], 0);  // BOS
  EXPECT_EQ(server().complete(greedy({{"prompt", ids["tokens"]}})).json()["choices"][0]["text"],
            both["choices"][0]["text"]);
}

// One too many tokens is known before the texts behind it, megabytes perhaps, are encoded.
TEST_F(ApiTest, TheFirstPromptThatDoesNotFitEndsTheRequest) {
  std::string long_text;
  for (int i = 0; i < 300; ++i) long_text += "zq ";
  const std::string longer(1000000, 'x');  // refused for its bytes alone
  const Answer refused = server().complete(greedy({{"prompt", {long_text, longer}}}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["code"], "context_length_exceeded");
  const std::string message = refused.json()["error"]["message"];
  EXPECT_NE(message.find("were asked for"), std::string::npos) << message;
}

TEST_F(ApiTest, StopStringsAndTokens) {
  const std::string text = server().complete(greedy()).json()["choices"][0]["text"];
  ASSERT_GT(text.size(), 6u);
  // Whole characters from the middle.
  const auto inside = [&](std::size_t at) { return (text[at] & 0xC0) == 0x80; };
  std::size_t begin = text.size() / 2;
  while (inside(begin)) --begin;
  std::size_t end = begin + 1;
  while (end < text.size() && inside(end)) ++end;
  const std::string stop = text.substr(begin, end - begin);
  const Json cut = server().complete(greedy({{"stop", {stop, "never there"}}})).json();
  EXPECT_EQ(cut["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  const Json ids = server().complete(greedy({{"return_token_ids", true}})).json();
  const Json third = ids["choices"][0]["token_ids"][2];
  const Json shorter =
      server().complete(greedy({{"stop_token_ids", {third}}, {"return_token_ids", true}})).json();
  EXPECT_EQ(shorter["choices"][0]["finish_reason"], "stop");
  EXPECT_LE(shorter["choices"][0]["token_ids"].size(), 2u);
  const Json longer =
      server()
          .complete(
              greedy({{"stop_token_ids", {third}}, {"min_tokens", 6}, {"return_token_ids", true}}))
          .json();
  EXPECT_GE(longer["choices"][0]["token_ids"].size(), 6u);
}

TEST_F(ApiTest, RoutesComeBackAndCanBeReplayed) {
  const Json asked = greedy({{"return_routed_gates", true}, {"temperature", 1}, {"seed", 3}});
  const Json plain = server().complete(asked).json()["choices"][0];
  const std::size_t prompt = plain["routed_prompt"];
  ASSERT_EQ(plain["routed_experts"].size(), prompt + 11);
  ASSERT_EQ(plain["routed_experts"][0].size(), 2u);
  ASSERT_EQ(plain["routed_experts"][0][0].size(), 2u);
  EXPECT_EQ(plain["routed_gates"].size(), plain["routed_experts"].size());
  EXPECT_GE(plain["routed_gates"][3][1][0], plain["routed_gates"][3][1][1]);
  std::string text;
  for (const Json& piece : plain["routed_text"]) text += piece.get<std::string>();
  EXPECT_TRUE(text.starts_with("<|begin|>The cat")) << text;

  Json streamed = asked;
  streamed["stream"] = true;
  Json joined = Json::array();
  for (const Json& event : server().complete(streamed).events()) {
    if (!event["choices"][0].contains("routed_experts")) continue;
    EXPECT_EQ(event["choices"][0]["routed_start"], joined.size());
    for (const Json& token : event["choices"][0]["routed_experts"]) joined.push_back(token);
  }
  EXPECT_EQ(joined, plain["routed_experts"]);

  Json replayed = asked;
  replayed["routed_experts"] = plain["routed_experts"];
  const Json again = server().complete(replayed).json()["choices"][0];
  EXPECT_EQ(again["text"], plain["text"]);
  EXPECT_EQ(again["routed_gates"], plain["routed_gates"]);
  for (Json& token : replayed["routed_experts"]) {
    for (Json& layer : token) layer = {7, 6};
  }
  const Json forced = server().complete(replayed).json()["choices"][0];
  EXPECT_EQ(forced["routed_experts"][2][1], (Json{7, 6}));
  EXPECT_NE(forced["routed_gates"], plain["routed_gates"]);

  const Json more =
      server()
          .complete(greedy({{"num_experts_per_tok", 5}, {"return_routed_experts", true}}))
          .json();
  EXPECT_EQ(more["choices"][0]["routed_experts"][0][0].size(), 5u);
  EXPECT_FALSE(more["choices"][0].contains("routed_gates"));
}

TEST_F(ApiTest, ExpertLoadCountsWhatWasForwarded) {
  ASSERT_EQ(Client(server().port()).request("DELETE", "/v1/experts").status, 200);
  const Json body = greedy({{"return_routed_experts", true}, {"prompt", "A dog in the fog"}});
  const Json routes = server().complete(body).json()["choices"][0]["routed_experts"];
  const Json load = server().get("/v1/experts").json();
  ASSERT_EQ(load["layers"].size(), 2u);
  EXPECT_EQ(load["window"]["tokens"], routes.size());
  for (std::size_t l = 0; l < 2; ++l) {
    std::vector<int64_t> counts(8, 0);
    for (const Json& token : routes) {
      for (const Json& expert : token[l]) ++counts[expert.get<std::size_t>()];
    }
    EXPECT_EQ(load["layers"][l]["tokens"], counts);
    EXPECT_EQ(load["layers"][l]["layer"], l + 1);
  }
  int64_t total = 0;
  const Json of_layer = server().get("/v1/experts/tokens?layer=1").json();
  for (const Json& expert : of_layer["experts"]) {
    total += expert["total"].get<int64_t>();
  }
  EXPECT_EQ(total, static_cast<int64_t>(routes.size()) * 2);
  EXPECT_EQ(server().get("/v1/experts/tokens?layer=0").status, 400);
  const Json one = server().get("/v1/experts/tokens?layer=2&expert=3&limit=4").json();
  EXPECT_EQ(one["expert"], 3);
  const std::string of_expert = "/v1/experts/tokens?layer=1&expert=";
  for (int e = 0; e < 8; ++e) {
    const Json all = server().get(of_expert + std::to_string(e) + "&limit=1000").json()["tokens"];
    const Json by_lift =
        server().get(of_expert + std::to_string(e) + "&limit=1000&sort=lift").json()["tokens"];
    ASSERT_EQ(by_lift.size(), all.size());
    for (std::size_t i = 1; i < by_lift.size(); ++i) {
      EXPECT_GE(by_lift[i - 1]["lift"].get<double>() + 1e-12, by_lift[i]["lift"].get<double>());
    }
    const auto often = std::count_if(all.begin(), all.end(),
                                     [](const Json& token) { return token["count"] >= 2; });
    const Json floored =
        server().get(of_expert + std::to_string(e) + "&limit=1000&sort=lift&min_count=2").json();
    EXPECT_EQ(std::ssize(floored["tokens"]), often);
  }
  EXPECT_EQ(server().get(of_expert + "1&sort=name").json()["error"]["param"], "sort");
  EXPECT_EQ(server().get(of_expert + "1&min_count=0").status, 400);
  EXPECT_EQ(server().post("/v1/experts/reset", Json::object()).json()["window"]["tokens"], 0);
}

TEST_F(ApiTest, InformationRoutes) {
  const Json models = server().get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "small");
  EXPECT_EQ(models["data"][0]["max_model_len"], 256);
  EXPECT_EQ(models["data"][0]["moe_layers"], (Json{1, 2}));
  EXPECT_EQ(server().get("/v1/models/small").json(), models["data"][0]);
  EXPECT_EQ(server().get("/v1/models/").json(), models);
  EXPECT_EQ(server().get("/v1/models/other").json()["error"]["code"], "model_not_found");
  EXPECT_EQ(server().get("/health").json()["status"], "ok");
  EXPECT_TRUE(server().get("/version").json().contains("version"));
  EXPECT_EQ(server().get("/version").json().at("engine_version"), kEngineVersion);
  EXPECT_EQ(server().get("/tokenizer_info").json()["eos_token"], "<|end|>");
  // vLLM's words and llama.cpp's: the one adds BOS, the other does not.
  const Json ids = server().post("/tokenize", {{"content", "The cat"}}).json()["tokens"];
  const Json with_bos = server().post("/tokenize", {{"prompt", "The cat"}}).json()["tokens"];
  EXPECT_EQ(with_bos.size(), ids.size() + 1);
  EXPECT_EQ(
      server().post("/tokenize", {{"content", "The cat"}, {"add_special", true}}).json()["tokens"],
      with_bos);
  const Json text = server().post("/detokenize", {{"tokens", ids}}).json();
  EXPECT_EQ(text, (Json{{"prompt", "The cat"}, {"content", "The cat"}}));
  server().complete(Json::object());
  const std::string metrics = server().get("/metrics").body;
  for (const char* name : {"dsmoe_requests_total{route=\"/v1/completions\",status=\"400\"}",
                           "dsmoe_requests_total{route=\"/v1/models\",status=\"200\"}",
                           "dsmoe_requests_total{route=\"/v1/models/*\",status=\"404\"}",
                           "dsmoe_first_token_seconds_bucket", "dsmoe_kv_pages{state=\"free\"}",
                           "dsmoe_expert_tokens_total{layer=\"1\",expert=\"0\"}"}) {
    EXPECT_NE(metrics.find(name), std::string::npos) << name;
  }
  const Answer page = server().get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.headers.at("content-type").starts_with("text/html"));
}

TEST_F(ApiTest, HeadersIdsAndCors) {
  Client client(server().port());
  const Answer echoed = client.request("GET", "/health", "",
                                       {"X-Request-Id: abc-1", "Origin: http://localhost:3000"});
  EXPECT_EQ(echoed.headers.at("x-request-id"), "abc-1");
  EXPECT_EQ(echoed.headers.at("access-control-allow-origin"), "http://localhost:3000");
  const Answer other = client.request("GET", "/health", "", {"Origin: http://example.org"});
  EXPECT_EQ(other.headers.count("access-control-allow-origin"), 0u);
  EXPECT_EQ(other.status, 200);
  // Nor may it make the server work.
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  const auto asked_from = [&](const std::string& origin, const std::string& host) {
    Client page(server().port());
    page.send(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: {}\r\nOrigin: {}\r\n"
                    "Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{}",
                    host, origin, body.size(), body));
    return page.receive().status;
  };
  EXPECT_EQ(asked_from("http://example.org", "127.0.0.1:8080"), 403);
  EXPECT_EQ(asked_from("null", "127.0.0.1:8080"), 403);
  EXPECT_EQ(asked_from("http://localhost:3000", "127.0.0.1:8080"), 200);
  EXPECT_EQ(asked_from("http://127.0.0.1:8080", "127.0.0.1:8080"), 200);  // our own page
  const Answer preflight =
      client.request("OPTIONS", "/v1/completions", "", {"Origin: http://127.0.0.1:1"});
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"),
            "authorization, content-type, x-request-id");
  // The openai client of browsers sends headers of its own.
  const Answer stainless =
      client.request("OPTIONS", "/v1/completions", "",
                     {"Origin: http://127.0.0.1:1",
                      "Access-Control-Request-Headers: authorization,content-type,x-stainless-os"});
  EXPECT_EQ(stainless.headers.at("access-control-allow-headers"),
            "authorization,content-type,x-stainless-os");
  EXPECT_EQ(client.request("GET", "/v1/completions").headers.at("allow"), "OPTIONS, POST");
  EXPECT_EQ(client.request("PUT", "/v1/experts").headers.at("allow"), "OPTIONS, GET, HEAD, DELETE");
}

TEST_F(ApiTest, ThePageMayAskNobodyElse) {
  const std::string policy = server().get("/").headers.at("content-security-policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
}

TEST_F(ApiTest, CachedTokensOfAPromptCountOnce) {
  const std::string words = "The dog sat on the log and the cat sat on the mat. ";
  const Json body = greedy({{"prompt", words + words + words + words + words}, {"n", 4}});
  server().complete(body);
  const Json usage = server().complete(body).json()["usage"];
  const int64_t cached = usage["prompt_tokens_details"]["cached_tokens"];
  EXPECT_GE(cached, 64);
  EXPECT_LE(cached, usage["prompt_tokens"].get<int64_t>());
}

// Tokens that are single bytes, drawn at random: characters and stop strings are cut everywhere.
class ByteTokens : public ApiTest {
 protected:
  // Ids of the bytes of `text`, and a bias that leaves nothing else to choose.
  static Json only(const std::string& text) {
    const Json ids =
        server().post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}}).json();
    Json bias = Json::object();
    for (const Json& id : ids["tokens"]) {
      bias[std::to_string(id.get<int>())] = 100;
    }
    return bias;
  }
  static Json drawn(const std::string& bytes, int seed) {
    return greedy({{"temperature", 2},
                   {"frequency_penalty", 2},
                   {"seed", seed},
                   {"max_tokens", 40},
                   {"ignore_eos", true},
                   {"logit_bias", only(bytes)}});
  }
  // The pieces of the streamed answer.
  static std::vector<std::string> pieces(Json body) {
    body["stream"] = true;
    std::vector<std::string> texts;
    for (const Json& event : server().complete(body).events()) {
      texts.push_back(event["choices"][0]["text"]);
    }
    return texts;
  }
};

TEST_F(ByteTokens, NoPieceEndsInsideACharacter) {
  int num_whole = 0;
  for (int seed = 0; seed < 6; ++seed) {
    const Json body = drawn("\u00e9", seed);  // two bytes, two tokens
    const std::string plain = server().complete(body).json()["choices"][0]["text"];
    std::string joined;
    for (const std::string& piece : pieces(body)) {
      // A cut character would be sent as two replacements.
      EXPECT_TRUE(plain.substr(joined.size()).starts_with(piece));
      joined += piece;
    }
    EXPECT_EQ(joined, plain);
    for (std::size_t at = 0; (at = plain.find("\u00e9", at)) != std::string::npos; ++at)
      ++num_whole;
  }
  EXPECT_GT(num_whole, 10);
}

TEST_F(ByteTokens, NoPartOfAStopStringIsSent) {
  int num_stopped = 0;
  for (int seed = 0; seed < 6; ++seed) {
    Json body = drawn("xyz", seed);
    const std::string whole = server().complete(body).json()["choices"][0]["text"];
    body["stop"] = {"xyz", "zzz", "yx"};
    const Json cut = server().complete(body).json()["choices"][0];
    const std::string text = cut["text"];
    EXPECT_TRUE(whole.starts_with(text));
    for (const char* stop : {"xyz", "zzz", "yx"}) {
      EXPECT_EQ(text.find(stop), std::string::npos);
      if (whole.substr(text.size()).starts_with(stop)) ++num_stopped;
    }
    std::string joined;
    for (const std::string& piece : pieces(body)) {
      joined += piece;
      EXPECT_TRUE(text.starts_with(joined)) << joined << " of " << text;
    }
    EXPECT_EQ(joined, text);
  }
  EXPECT_EQ(num_stopped, 6);
}

TEST_F(ApiTest, ALeavingClientFreesItsSlot) {
  for (const bool streams : {true, false}) {
    {
      Client client(server().port());
      const Json body{
          {"prompt", "The cat"}, {"max_tokens", 240}, {"ignore_eos", true}, {"stream", streams}};
      client.send(format_request("POST", "/v1/completions", body.dump()));
      if (streams) client.receive_some();
    }
    infer::EngineStats stats;
    for (int i = 0; i < 500; ++i) {
      stats = server().service().engine().stats();
      if (stats.running == 0 && stats.waiting == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.pages);
  }
}

}  // namespace
}  // namespace dsmoe::testing
