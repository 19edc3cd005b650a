// Flags to JSON and back.
#include "commands/kept_flags.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/error.h"

namespace dsmoe::app {
namespace {

bool is_kept(const Given::Flag& flag) {
  static const std::vector<std::string> kOfOneProcess{"--out", "--resume", "--json", "--quiet",
                                                      "--threads"};
  return std::find(kOfOneProcess.begin(), kOfOneProcess.end(), flag.name) == kOfOneProcess.end();
}

bool is_path(const Given::Flag& flag) {
  return flag.type == "FILE" || flag.type == "DIR" || flag.type == "MODEL";
}

std::vector<std::string> values_to_keep(const Given::Flag& flag) {
  if (!is_path(flag)) return flag.values;
  std::vector<std::string> values;
  for (const std::string& value : flag.values) {
    values.push_back(std::filesystem::absolute(value).lexically_normal().string());
  }
  return values;
}

std::optional<double> number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

// "1e-3" is "0.001".
bool agrees(const std::vector<std::string>& kept, const std::vector<std::string>& given) {
  const auto same = [](const std::string& a, const std::string& b) {
    const std::optional<double> x = number(a), y = number(b);
    return a == b || (x && y && *x == *y);
  };
  return std::equal(kept.begin(), kept.end(), given.begin(), given.end(), same);
}

std::string listed(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + value;
  return text;
}

Given::Flag kept_flag(const std::string& name, const OrderedJson& value, const std::string& what) {
  Given::Flag flag{.name = name, .type = "VALUE", .values = {}};
  if (value == true) {
    flag.type = "";
  } else if (value.is_string()) {
    flag.values.push_back(value.get<std::string>());
  } else if (value.is_array()) {
    for (const OrderedJson& one : value) {
      if (!one.is_string()) break;
      flag.values.push_back(one.get<std::string>());
    }
  }
  const bool is_whole = !value.is_array() || flag.values.size() == value.size();
  if (!name.starts_with("--") || !is_whole || (flag.values.empty() && !flag.type.empty())) {
    fail(ErrorKind::input, "{}: \"options\": {} is no flag with its values", what, name);
  }
  return flag;
}

}  // namespace

OrderedJson flags_to_keep(const std::vector<Given::Flag>& given) {
  OrderedJson kept = OrderedJson::object();
  for (const Given::Flag& flag : given) {
    if (!is_kept(flag)) continue;
    const std::vector<std::string> values = values_to_keep(flag);
    if (flag.type.empty()) {
      kept[flag.name] = true;
    } else if (values.size() == 1) {
      kept[flag.name] = values.front();
    } else {
      kept[flag.name] = values;
    }
  }
  return kept;
}

MergedFlags merge_flags(const OrderedJson& kept, const std::vector<Given::Flag>& given,
                        const std::string& what) {
  MergedFlags merged{.flags = given, .changed = {}};
  for (const auto& [name, value] : kept.items()) {
    const Given::Flag before = kept_flag(name, value, what);
    const auto again = std::find_if(given.begin(), given.end(),
                                    [&](const Given::Flag& flag) { return flag.name == name; });
    if (again == given.end()) {
      merged.flags.push_back(before);
      continue;
    }
    const std::vector<std::string> values = values_to_keep(*again);
    if (agrees(before.values, values)) continue;
    merged.changed.push_back(
        fmt::format("{} {} instead of {}", name, listed(values), listed(before.values)));
  }
  for (const Given::Flag& flag : given) {
    if (!is_kept(flag) || kept.contains(flag.name)) continue;
    merged.changed.push_back(
        flag.values.empty() ? flag.name : fmt::format("{} {}", flag.name, listed(flag.values)));
  }
  return merged;
}

}  // namespace dsmoe::app
