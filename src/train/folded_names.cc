// Groups by name without its numbers, and writes the numbers as ranges.
#include "train/folded_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

namespace dsmoe::train {
namespace {

struct Group {
  std::vector<std::string> words;  // between dots; empty: a number
  std::vector<std::set<int64_t>> numbers;
  std::string shape;
  int64_t count = 0;
};

bool is_number(const std::string& word) {
  return !word.empty() && word.size() < 10 &&
         std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '.') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

// "0-3,5".
std::string ranges(const std::set<int64_t>& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const int64_t first = *at;
    int64_t last = first;
    while (++at != numbers.end() && *at == last + 1) last = *at;
    if (!text.empty()) text += ",";
    text += last > first ? fmt::format("{}-{}", first, last) : std::to_string(first);
  }
  return text;
}

std::string text_of(const Group& group) {
  std::string name;
  std::size_t number = 0;
  std::size_t all = 1;  // names that the ranges stand for
  for (const std::string& word : group.words) {
    if (!name.empty()) name += ".";
    if (!word.empty()) {
      name += word;
      continue;
    }
    all *= group.numbers[number].size();
    name += ranges(group.numbers[number++]);
  }
  std::string text = name + " " + group.shape;
  if (group.count > 1) text += fmt::format(": {} tensors", group.count);
  if (static_cast<std::size_t>(group.count) < all) text += fmt::format(", not all {}", all);
  return text;
}

}  // namespace

std::vector<std::string> folded_names(std::span<const tensor::TensorSpec> specs) {
  std::vector<Group> groups;
  std::map<std::string, std::size_t> place;
  for (const tensor::TensorSpec& spec : specs) {
    Group one{.shape = to_string(spec.shape)};
    std::string key = one.shape;
    std::vector<int64_t> numbers;
    for (std::string& word : words_of(spec.name)) {
      if (is_number(word)) {
        numbers.push_back(std::stoll(word));
        word.clear();
      }
      key += "." + word;
      one.words.push_back(std::move(word));
    }
    const auto [found, is_new] = place.try_emplace(key, groups.size());
    if (is_new) {
      one.numbers.resize(numbers.size());
      groups.push_back(std::move(one));
    }
    Group& group = groups[found->second];
    for (std::size_t i = 0; i < numbers.size(); ++i) group.numbers[i].insert(numbers[i]);
    ++group.count;
  }
  std::vector<std::string> lines;
  for (const Group& group : groups) lines.push_back(text_of(group));
  return lines;
}

}  // namespace dsmoe::train
