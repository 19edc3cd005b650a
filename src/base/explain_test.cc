#include "base/explain.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

TEST(Explain, SaysALineOnce) {
  ::testing::internal::CaptureStderr();
  explain("layer of 4 rows: one launch");
  explain("layer of 5 rows: op by op");
  explain("layer of 4 rows: one launch");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "dsmoe: explain: layer of 4 rows: one launch\n"
            "dsmoe: explain: layer of 5 rows: op by op\n");
}

}  // namespace
}  // namespace dsmoe
