// A table of tokens and their experts, one row per token, one column per MoE layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "infer/sequence/routes.h"

namespace dsmoe::report {

struct ExpertTable {
  std::vector<int64_t> layers;      // of `routes`
  std::vector<std::string> labels;  // a row each: the token
  infer::Routes routes;             // of these tokens; those of the last may be missing
};

enum class Colour { no, yes };

struct TableStyle {
  int64_t experts_per_cell = 2;
  int columns = 100;  // of the terminal; more layers than fit continue below
  Colour colour = Colour::no;
};

// "12 .31" is expert 12 with gate 0.31; the strongest first.
std::string format_expert_table(const ExpertTable& table, const TableStyle& style);

// A token as one line: quoted, control characters escaped.
std::string quoted_token(std::string_view bytes);

}  // namespace dsmoe::report
