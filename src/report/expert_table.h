// A table of tokens and their experts, one row per token, one column per MoE layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "infer/session.h"

namespace dsmoe::app {

struct ExpertTable {
  std::vector<int64_t> layers;
  struct Row {
    std::string label;                               // the token
    std::vector<infer::RoutingRecord::Slots> slots;  // [place in `layers`]
  };
  std::vector<Row> rows;
};

enum class Colour { no, yes };

struct TableStyle {
  int64_t experts_per_cell = 2;
  int columns = 100;  // of the terminal; more layers than fit continue below
  Colour colour = Colour::no;
};

// "12 .31" is expert 12 with gate 0.31; the strongest first.
std::string format_expert_table(const ExpertTable& table, const TableStyle& style);

// The width of the terminal on stdout; 100 where it is none.
int terminal_columns();

// A token as one line: quoted, control characters escaped.
std::string quoted_token(std::string_view bytes);

}  // namespace dsmoe::app
