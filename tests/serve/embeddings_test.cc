// /v1/embeddings: the hidden states of a pass over the same tokens, pooled.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/log.h"
#include "kernels/elements.h"
#include "kernels/table.h"
#include "serve/small_server.h"

namespace dsmoe::testing {
namespace {

class EmbeddingsTest : public SmallServerTest {
 protected:
  static Json embed(const Json& more) {
    Json body{{"model", "small"}};
    body.update(more);
    const Answer answer = server().post("/v1/embeddings", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
};

std::vector<float> unit(std::vector<double> values) {
  double squares = 0;
  for (const double value : values) {
    squares += static_cast<double>(static_cast<float>(value)) * static_cast<float>(value);
  }
  std::vector<float> result;
  for (const double value : values) {
    result.push_back(static_cast<float>(static_cast<float>(value) / std::sqrt(squares)));
  }
  return result;
}

// [tokens][hidden] of a pass of our own.
std::vector<std::vector<double>> hidden_states(const model::Model& model,
                                               const std::vector<int32_t>& tokens) {
  ThreadPool pool(1);
  const kernels::Context context{.table = &kernels::select_cpu_table(), .pool = &pool};
  const auto count = static_cast<int64_t>(tokens.size());
  attention::KvCache cache(context, model.kv_layers(), attention::KvCache::pages_for(count));
  model::ForwardPass pass(context, model, cache, {.max_tokens = count, .max_sequences = 1});
  attention::KvSequence sequence;
  cache.reserve(sequence, count);
  const model::Segment segment{.sequence = &sequence, .num_tokens = count};
  const tensor::TensorView hidden = pass.run({.tokens = tokens, .segments = {&segment, 1}});
  std::vector<std::vector<double>> rows(tokens.size());
  for (int64_t i = 0; i < hidden.num_elements(); ++i) {
    rows[static_cast<std::size_t>(i / hidden.dim(1))].push_back(
        kernels::read_element(hidden.data, hidden.dtype, i));
  }
  return rows;
}

TEST_F(EmbeddingsTest, AreTheHiddenStatesOfAPass) {
  const std::vector<int32_t> tokens{5, 9, 270, 33, 260, 101, 7};
  const auto rows = hidden_states(server().model(), tokens);
  std::vector<double> mean(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) mean[i] += row[i];
  }
  for (double& value : mean) value /= static_cast<double>(rows.size());
  const Json by_mean = embed({{"input", tokens}});
  EXPECT_EQ(by_mean["data"][0]["embedding"].get<std::vector<float>>(), unit(mean));
  const Json by_last = embed({{"input", tokens}, {"pooling", "last"}});
  EXPECT_EQ(by_last["data"][0]["embedding"].get<std::vector<float>>(), unit(rows.back()));
  EXPECT_EQ(by_mean["usage"]["prompt_tokens"], tokens.size());
}

TEST_F(EmbeddingsTest, DependOnTheirTextAlone) {
  std::string words;
  for (int i = 0; i < 20; ++i) words += "The dog sat on the log. ";
  const Json alone = embed({{"input", words}})["data"][0]["embedding"];
  const Json list = embed({{"input", {"The cat", words, "", words}}})["data"];
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[1]["embedding"], alone);
  EXPECT_EQ(list[3]["embedding"], alone);
  EXPECT_EQ(list[3]["index"], 3);
  EXPECT_NE(list[0]["embedding"], alone);
  const Json last = embed({{"input", words}, {"pooling", "last"}})["data"][0]["embedding"];
  EXPECT_EQ(embed({{"input", words}, {"pooling", "last"}})["data"][0]["embedding"], last);
  EXPECT_NE(last, alone);
}

TEST_F(EmbeddingsTest, FormsAndDimensions) {
  const std::vector<float> whole =
      embed({{"input", "The cat"}})["data"][0]["embedding"].get<std::vector<float>>();
  const std::string text =
      embed({{"input", "The cat"}, {"encoding_format", "base64"}})["data"][0]["embedding"];
  EXPECT_EQ(text.size(), (whole.size() * 4 + 2) / 3 * 4);
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char c : text) {
    const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::size_t digit = letters.find(c);
    if (digit == std::string::npos) break;
    bits = bits << 6 | static_cast<unsigned>(digit);
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 255);
  }
  ASSERT_EQ(bytes.size(), whole.size() * sizeof(float));
  std::vector<float> decoded(whole.size());
  std::memcpy(decoded.data(), bytes.data(), bytes.size());
  EXPECT_EQ(decoded, whole);
  const std::vector<float> five =
      embed({{"input", "The cat"}, {"dimensions", 5}})["data"][0]["embedding"]
          .get<std::vector<float>>();
  ASSERT_EQ(five.size(), 5u);
  double squares = 0;
  for (const float value : five) squares += static_cast<double>(value) * value;
  EXPECT_NEAR(squares, 1, 1e-6);
  EXPECT_NEAR(five[1] / five[0], whole[1] / whole[0], 1e-5);
}

// The server's context holds 256 tokens; a prompt that is not answered may fill it.
TEST_F(EmbeddingsTest, ATextIsCutToTheContext) {
  const std::vector<int32_t> tokens(300, 33), all_that_fit(256, 33);
  const Json cut = embed({{"input", tokens}, {"truncate_prompt_tokens", -1}});
  EXPECT_EQ(cut["usage"]["prompt_tokens"], 256);
  EXPECT_EQ(cut["data"], embed({{"input", all_that_fit}})["data"]);
  for (const auto& [answer, prompt] : {std::pair(0, 256), std::pair(1, 256), std::pair(5, 252)}) {
    const Json completion = server()
                                .complete({{"prompt", tokens},
                                           {"max_tokens", answer},
                                           {"ignore_eos", true},
                                           {"truncate_prompt_tokens", -1}})
                                .json();
    EXPECT_EQ(completion["usage"]["prompt_tokens"], prompt) << completion;
    EXPECT_EQ(completion["usage"]["completion_tokens"], answer) << completion;
  }
}

TEST_F(EmbeddingsTest, WrongFieldsAreRefusedByName) {
  const auto param = [&](const Json& body) -> Json {
    const Answer answer = server().post("/v1/embeddings", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"]["param"];
  };
  EXPECT_EQ(param(Json::object()), "input");
  EXPECT_EQ(param({{"input", Json::array()}}), "input");
  EXPECT_EQ(param({{"input", {1, "a"}}}), "input");
  EXPECT_EQ(param({{"input", "a"}, {"dimensions", 33}}), "dimensions");
  EXPECT_EQ(param({{"input", "a"}, {"dimensions", 0}}), "dimensions");
  EXPECT_EQ(param({{"input", "a"}, {"encoding_format", "int8"}}), "encoding_format");
  EXPECT_EQ(param({{"input", "a"}, {"pooling", "max"}}), "pooling");
  EXPECT_EQ(param({{"input", "a"}, {"normalize", false}}), "normalize");
  EXPECT_EQ(param({{"input", std::string(100000, 'x')}}), "input");
}

}  // namespace
}  // namespace dsmoe::testing
