// Lays out routing for a terminal.
#include "report/expert_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace dsmoe::report {
namespace {

// Twelve colours of the 256 that stand apart on dark and light grounds.
constexpr int kPalette[] = {33, 202, 35, 170, 136, 62, 37, 160, 99, 71, 208, 132};

std::string cell(const infer::RoutesView& slots, const TableStyle& style, int id_width) {
  std::string text;
  for (std::size_t i = 0; i < static_cast<std::size_t>(style.experts_per_cell); ++i) {
    if (i >= slots.index.size() || slots.index[i] < 0) {
      text += std::string(static_cast<std::size_t>(id_width) + 6, ' ');
      continue;
    }
    const std::string id = fmt::format("{:>{}}", slots.index[i], id_width);
    const int percent = static_cast<int>(std::lround(slots.gate[i] * 100));
    const std::string gate =
        percent < 100 ? fmt::format(".{:02}", percent) : fmt::format("{:.1f}", slots.gate[i]);
    text += style.colour == Colour::yes ? fmt::format("\x1b[1;38;5;{}m{}\x1b[0m {}  ",
                                                      kPalette[slots.index[i] % 12], id, gate)
                                        : fmt::format("{} {}  ", id, gate);
  }
  return text;
}

// Terminal columns a label takes: one per code point, which is right for most scripts.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string padded(const std::string& text, std::size_t width) {
  const std::size_t own = width_of(text);
  return own < width ? text + std::string(width - own, ' ') : text;
}

}  // namespace

std::string format_expert_table(const ExpertTable& table, const TableStyle& style) {
  std::size_t label_width = 5;
  int id_width = 1;
  for (const std::string& label : table.labels)
    label_width = std::max(label_width, width_of(label));
  for (const int32_t expert : table.routes.index) {
    id_width = std::max(id_width, static_cast<int>(std::to_string(std::max(expert, 0)).size()));
  }
  label_width += 2;
  const std::size_t cell_width =
      std::max<std::size_t>(10, static_cast<std::size_t>(style.experts_per_cell) *
                                    (static_cast<std::size_t>(id_width) + 6)) +
      1;
  const auto room = static_cast<std::size_t>(std::max(style.columns, 40));
  const std::size_t per_block =
      std::max<std::size_t>(1, room > label_width ? (room - label_width) / cell_width : 1);
  std::string text;
  for (std::size_t first = 0; first < table.layers.size(); first += per_block) {
    const std::size_t last = std::min(first + per_block, table.layers.size());
    if (first > 0) text += "\n";
    text += padded("token", label_width);
    for (std::size_t l = first; l < last; ++l) {
      text += padded(fmt::format("layer {}", table.layers[l]), cell_width);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
    for (std::size_t row = 0; row < table.labels.size(); ++row) {
      std::string line = padded(table.labels[row], label_width);
      const auto token = static_cast<int64_t>(row);
      for (std::size_t l = first; l < last && token < table.routes.num_tokens(); ++l) {
        const std::string content =
            cell(table.routes.view().slots(token, static_cast<int64_t>(l)), style, id_width);
        const std::size_t plain = static_cast<std::size_t>(style.experts_per_cell) *
                                  (static_cast<std::size_t>(id_width) + 6);
        line += content + std::string(cell_width - std::min(plain, cell_width), ' ');
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  }
  return text;
}

std::string quoted_token(std::string_view bytes) {
  std::string text = "\"";
  while (!bytes.empty()) {
    // Part of a character, as byte-level tokens can be, counts as one byte.
    const auto length = static_cast<std::size_t>(std::max(utf8_sequence_length(bytes), 1));
    const auto byte = static_cast<unsigned char>(bytes[0]);
    if (length > 1) {
      text += bytes.substr(0, length);
    } else if (byte == '\n' || byte == '\t') {
      text += byte == '\n' ? "\\n" : "\\t";
    } else if (byte == '"' || byte == '\\') {
      text += '\\';
      text += bytes[0];
    } else if (byte < 0x20 || byte >= 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += bytes[0];
    }
    bytes.remove_prefix(length);
  }
  return text + "\"";
}

}  // namespace dsmoe::report
