// Texts that PyPI jsonschema judged: src/constrain/testdata, made by
// oracle/make_constraint_goldens.py.
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "constrain/test_support.h"

namespace dsmoe::constrain {
namespace {

TEST(JsonSchemaGolden, WhatIsPlainCanBeWrittenAndWhatIsInvalidCannot) {
  const std::string path = std::string(DSMOE_SOURCE_DIR) + "/src/constrain/testdata/cases.json";
  const OrderedJson cases = parse_ordered_json(read_small_file(path, std::size_t{1} << 20), path);
  ASSERT_GT(cases.size(), 150u);
  for (const OrderedJson& each : cases) {
    const auto constraint = constraint_of(Shape::schema(each["schema"], "schema"));
    for (const std::string text : each["plain"]) {
      EXPECT_TRUE(accepts(constraint, text)) << each["schema"] << "\n" << text;
    }
    for (const std::string text : each["invalid"]) {
      EXPECT_FALSE(accepts(constraint, text)) << each["schema"] << "\n" << text;
    }
  }
}

}  // namespace
}  // namespace dsmoe::constrain
