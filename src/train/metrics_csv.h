// metrics.csv: the numbers of metrics.jsonl as a table, for those who read tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace dsmoe::train {

// A cell is empty where a line has no such value.
class CsvTable {
 public:
  struct Columns {
    std::vector<std::string> sources, validation_sources, figures;
    std::vector<int64_t> layers;
  };
  explicit CsvTable(const Columns& columns);

  std::string header() const;
  // One line of metrics.jsonl; what was measured before the first step is a row of its own, step 0.
  std::string rows(const OrderedJson& line) const;

 private:
  struct Column {
    std::string name;
    std::vector<std::string> path;  // of keys; a whole number where a list is entered
  };
  std::string row(const OrderedJson& line) const;

  std::vector<Column> columns_;
};

}  // namespace dsmoe::train
