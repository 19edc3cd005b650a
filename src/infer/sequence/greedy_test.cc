// Many greedy answers at once equal those of generate(), one by one.
#include "infer/sequence/greedy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "infer/load_model.h"
#include "infer/sequence/generate.h"
#include "kernels/table.h"

namespace dsmoe::infer {
namespace {

class Greedy : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  kernels::Context context_{.table = &kernels::select_cpu_table(), .pool = &pool_};
  std::unique_ptr<model::Model> model_ =
      load_model(context_, std::filesystem::path(DSMOE_SOURCE_DIR) / "tests/goldens/released", {});
  std::vector<std::vector<int32_t>> prompts_{{5, 17, 3}, {42}, {8, 8, 30, 2, 11}, {3, 9}, {1, 2}};

  std::vector<std::vector<int32_t>> answers(const GreedyOptions& options) {
    std::vector<std::vector<int32_t>> all;
    const Outcome outcome = answer_greedily(context_, *model_, prompts_, options,
                                            [&](int64_t idx, std::span<const int32_t> answer) {
                                              EXPECT_EQ(idx, static_cast<int64_t>(all.size()));
                                              all.emplace_back(answer.begin(), answer.end());
                                            });
    EXPECT_EQ(outcome, Outcome::done);
    return all;
  }
};

TEST_F(Greedy, EqualsEachAlone) {
  std::vector<std::vector<int32_t>> expected;
  for (const auto& prompt : prompts_) {
    Session session(context_, *model_, {});
    expected.push_back(
        generate(session, prompt, {.sampler = {.temperature = 0}, .max_tokens = 9}, [](int32_t) {
          return Next::more;
        }).tokens);
  }
  EXPECT_EQ(answers({.max_tokens = 9}), expected);
  EXPECT_EQ(answers({.max_tokens = 9, .max_prompts = 2}), expected);

  // The third token of the first answer, as a stop, ends answers before it.
  const int32_t stop = expected[0][2];
  for (auto& answer : expected)
    answer.erase(std::find(answer.begin(), answer.end(), stop), answer.end());
  EXPECT_LE(expected[0].size(), 2u);
  EXPECT_EQ(answers({.max_tokens = 9, .stop_ids = {stop}}), expected);
}

TEST_F(Greedy, RefusesWhatDoesNotFit) {
  prompts_ = {{}};
  EXPECT_THROW(answers({.max_tokens = 1}), Error);
  prompts_ = {{1, -1}};
  EXPECT_THROW(answers({.max_tokens = 1}), Error);
  prompts_ = {{1, 2}};
  EXPECT_THROW(answers({.max_tokens = model_->context}), Error);
}

}  // namespace
}  // namespace dsmoe::infer
