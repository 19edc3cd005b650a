// Sessions, program, machine, data, recipe. Every field may be missing: people edit files.
#include "report/run_card.h"

#include <fmt/core.h>

#include "base/readable.h"
#include "train/run_record.h"

namespace dsmoe::report {
namespace {

const OrderedJson& at(const OrderedJson& object, const char* key) {
  static const OrderedJson kNothing;
  if (!object.is_object()) return kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

// A string as it is, anything else as JSON, nothing as "".
std::string text(const OrderedJson& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

class Card {
 public:
  void add(const char* name, const std::string& value) {
    if (!value.empty()) rows_.push_back({{"name", name}, {"value", value}});
  }
  OrderedJson rows() const { return rows_; }

 private:
  OrderedJson rows_ = OrderedJson::array();
};

std::string command_of(const OrderedJson& session) {
  std::string line;
  for (const OrderedJson& word : at(session, "command")) {
    const std::string plain = text(word);
    const bool is_plain = !plain.empty() && plain.find_first_of(" \t'\"*?$") == std::string::npos;
    line += (line.empty() ? "" : " ") + (is_plain ? plain : "'" + plain + "'");
  }
  return line;
}

std::string session_text(const OrderedJson& session) {
  std::string line = text(at(session, "began"));
  if (const std::string ended = text(at(session, "ended")); !ended.empty()) line += " to " + ended;
  if (at(session, "first_step").is_number()) {
    line += ", from step " + text(at(session, "first_step"));
  }
  if (at(session, "last_step").is_number()) line += " to " + text(at(session, "last_step"));
  const std::string end = text(at(session, "end"));
  line += ": " + (end == "going on" ? "going on, or ended without a word" : end);
  for (const OrderedJson& change : at(session, "changed")) line += "; " + text(change);
  return line;
}

std::string program_text(const OrderedJson& session) {
  std::string line = "dsmoe " + text(at(session, "version"));
  const std::string commit = text(at(session, "commit"));
  if (!commit.empty()) line += " (" + commit + ")";
  return line;
}

std::string machine_text(const OrderedJson& machine) {
  std::string line = text(at(machine, "host"));
  const auto add = [&](const std::string& part) {
    if (!part.empty()) line += (line.empty() ? "" : ", ") + part;
  };
  add(text(at(machine, "cpu")));
  if (at(machine, "cores").is_number()) add(text(at(machine, "cores")) + " cores");
  if (const OrderedJson& bytes = at(machine, "memory_bytes"); bytes.is_number()) {
    add(fmt::format("{:.1f} GiB", bytes.get<double>() / (1 << 30)));
  }
  add(text(at(machine, "device")));
  if (at(machine, "threads").is_number()) add(text(at(machine, "threads")) + " threads");
  if (at(machine, "kernels").is_string()) add("kernels " + text(at(machine, "kernels")));
  return line;
}

std::string file_text(const OrderedJson& file) {
  std::string line = text(at(file, "path"));
  if (const OrderedJson& bytes = at(file, "bytes"); bytes.is_number_integer()) {
    line += fmt::format(", {} bytes", with_commas(bytes.get<int64_t>()));
  }
  if (const OrderedJson& share = at(file, "share"); share.is_number()) {
    line += fmt::format(", {:.4g} of the rows", share.get<double>());
  }
  if (const std::string part = text(at(file, "part")); !part.empty()) line += ", " + part;
  return line + ", xxh64 " + text(at(file, "xxh64"));
}

std::string recipe_text(const OrderedJson& recipe) {
  std::string line;
  if (!recipe.is_object()) return line;
  for (const auto& [key, value] : recipe.items()) {
    if (key == "data" || (value.is_array() && value.empty())) continue;
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", key, text(value));
  }
  return line;
}

}  // namespace

OrderedJson run_card(const std::filesystem::path& run) {
  constexpr std::size_t kMostFiles = 20;
  const auto record = train::RunRecord::read_if_whole(run);
  Card card;
  if (!record) return card.rows();
  const OrderedJson json = record->json();
  const OrderedJson& sessions = at(json, "sessions");
  if (sessions.empty()) return card.rows();
  const OrderedJson& first = sessions.front();
  card.add("command", command_of(first));
  card.add("in", text(at(first, "folder")));
  for (const OrderedJson& session : sessions) card.add("session", session_text(session));
  card.add("program", program_text(sessions.back()));
  card.add("machine", machine_text(at(sessions.back(), "machine")));
  std::size_t files = 0;
  for (const OrderedJson& file : at(json, "data")) {
    if (++files <= kMostFiles) card.add("data", file_text(file));
  }
  if (files > kMostFiles) card.add("data", fmt::format("and {} more files", files - kMostFiles));
  card.add("recipe", recipe_text(at(json, "recipe")));
  return card.rows();
}

}  // namespace dsmoe::report
