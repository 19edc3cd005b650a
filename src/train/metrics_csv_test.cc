// Cells of a line.
#include "train/metrics_csv.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace dsmoe::train {
namespace {

TEST(CsvTable, NamesAndCells) {
  const CsvTable table({.sources = {"a,b", "c"}, .figures = {"greedy"}, .layers = {3}});
  const std::string header = table.header();
  EXPECT_EQ(header,
            "step,loss,validation_loss,validation_bits_per_byte,balance_loss,device_balance_loss,z_"
            "loss,lr,gradient_norm,"
            "epoch,tokens,counted_targets,seconds,wall_seconds,tokens_per_second,"
            "\"source_losses: a,b\",source_losses: c,figures: greedy,"
            "max_load: layer 3,dead: layer 3,load_entropy: layer 3\n");
  const OrderedJson line = OrderedJson::parse(
      R"({"step": 1, "loss": 2.5, "lr": 0.001, "first_validation_loss": 6, "source_losses": {"c": 1.5},)"
      R"("first_figures": {"greedy": 0.25}, "layers": [{"layer": 3, "max_load": 1.25, "dead": 0}]})");
  EXPECT_EQ(table.rows(line),
            "0,,6,,,,,,,,,,,,,,,0.25,,,\n1,2.5,,,,,,0.001,,,,,,,,,1.5,,1.25,0,\n");
  const std::string rows = table.rows(line);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), ','), 2 * 20);
}

}  // namespace
}  // namespace dsmoe::train
