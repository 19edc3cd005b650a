// The filters that compare elements: sort, unique, min, max.
#include <algorithm>
#include <optional>

#include "text/jinja/jinja_callables.h"

namespace dsmoe::text::jinja {
namespace {

// What elements are compared by: an attribute, letters of one case.
struct Keyed {
  Value key;
  Value item;
};

std::vector<Keyed> keyed_items(Run& run, const Value& input, const Value* attribute,
                               bool case_sensitive) {
  const bool by_attribute = attribute != nullptr && !is<None>(*attribute);
  if (by_attribute && as_string(*attribute) != nullptr &&
      as_string(*attribute)->find(',') != std::string::npos) {
    run.fail("several attributes at once are not supported");
  }
  std::vector<Keyed> rows;
  const ListPtr items = iterate(run, input);
  run.step(8 * static_cast<std::int64_t>(items->items.size()));
  for (const Value& item : items->items) {
    Value key = by_attribute ? lookup_path(run, item, *attribute) : item;
    const std::string* text = as_string(key);
    if (text != nullptr && !case_sensitive) key = change_case(run, *text, LetterCase::lower);
    rows.push_back({std::move(key), item});
  }
  return rows;
}

template <bool greatest>
Value extreme(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, greatest ? "max" : "min", args, {"case_sensitive", "attribute"});
  const std::vector<Keyed> rows = keyed_items(run, input, bound[1], bound.flag(0));
  const Keyed* best = nullptr;
  for (const Keyed& row : rows) {
    const bool is_better = best == nullptr || (greatest ? compare(run, row.key, best->key) > 0
                                                        : compare(run, row.key, best->key) < 0);
    if (is_better) best = &row;
  }
  return best == nullptr ? Value{Undefined{}} : best->item;
}

}  // namespace

Value sort_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> rows = keyed_items(run, input, bound[2], bound.flag(1));
  const bool descending = bound.flag(0);
  std::stable_sort(rows.begin(), rows.end(), [&](const Keyed& a, const Keyed& b) {
    run.step();
    return descending ? compare(run, b.key, a.key) < 0 : compare(run, a.key, b.key) < 0;
  });
  std::vector<Value> items;
  for (Keyed& row : rows) items.push_back(std::move(row.item));
  return make_list(run, ListKind::list, std::move(items));
}

Value unique_filter(Run& run, const Value& input, const CallArgs& args) {
  const BoundArgs bound(run, "unique", args, {"case_sensitive", "attribute"});
  std::vector<Keyed> kept;
  for (Keyed& row : keyed_items(run, input, bound[1], bound.flag(0))) {
    run.step(static_cast<std::int64_t>(kept.size()));
    const auto is_same = [&](const Keyed& other) { return equal(run, row.key, other.key); };
    if (std::none_of(kept.begin(), kept.end(), is_same)) kept.push_back(std::move(row));
  }
  std::vector<Value> items;
  for (Keyed& row : kept) items.push_back(std::move(row.item));
  return make_list(run, ListKind::iterator, std::move(items));
}

Value min_filter(Run& run, const Value& input, const CallArgs& args) {
  return extreme<false>(run, input, args);
}

Value max_filter(Run& run, const Value& input, const CallArgs& args) {
  return extreme<true>(run, input, args);
}

}  // namespace dsmoe::text::jinja
