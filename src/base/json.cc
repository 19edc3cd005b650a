// A SAX handler over nlohmann's parser that builds the value and refuses what the DOM parser would
// let pass.
#include "base/json.h"

#include <iterator>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace dsmoe {
namespace {

// A new member of `object`; null where the key is there already.
Json* add_member(Json::object_t& object, std::string& name) {
  const auto [slot, inserted] = object.try_emplace(name, nullptr);
  return inserted ? &slot->second : nullptr;
}
// Does not look for the key: that would take as long as the object has members.
OrderedJson* add_member(OrderedJson::object_t& object, std::string& name) {
  return &object.std::vector<OrderedJson::object_t::value_type>::emplace_back(name, nullptr).second;
}

template <class AnyJson>
class StrictBuilder : public nlohmann::json_sax<AnyJson> {
  using Base = nlohmann::json_sax<AnyJson>;

 public:
  StrictBuilder(std::string_view what, const JsonLimits& limits) : what_(what), limits_(limits) {}
  ~StrictBuilder() override { take_apart(root_); }

  AnyJson take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Base::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Base::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Base::number_float_t value, const std::string&) override {
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Base::binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(AnyJson::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(AnyJson::array()); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (++num_keys_ > limits_.max_keys) {
      fail(ErrorKind::input, "{}: more than {} keys in this JSON", what_, limits_.max_keys);
    }
    auto& object = stack_.back()->template get_ref<typename AnyJson::object_t&>();
    member_ = add_member(object, name);
    if (member_ == nullptr) {
      fail(ErrorKind::input, "{}: the key {} appears twice in one JSON object", what_,
           in_quotes(name));
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    fail(ErrorKind::input, "{}: not valid JSON at byte {}: {}", what_, position, reason(e.what()));
  }

 private:
  // nlohmann prefixes "[json.exception.parse_error.101] parse error at line 1, column 2: " and
  // quotes the token it stopped at, however long: "...; last read: 'TOKEN'; expected ...". The end
  // of the token is where it went wrong.
  static std::string reason(std::string text) {
    constexpr std::size_t kKept = 100;
    const std::size_t bracket = text.find("] ");
    if (bracket != std::string::npos) text.erase(0, bracket + 2);
    const std::size_t begin = text.find('\''), end = text.rfind('\'');
    if (begin == std::string::npos || end <= begin + kKept) return text;
    std::size_t from = end - kKept;
    while (from < end && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
    return text.replace(begin + 1, from - begin - 1, "...");
  }

  AnyJson* place(AnyJson&& value) {
    if (++num_values_ > limits_.max_values) {
      fail(ErrorKind::input, "{}: more than {} values in this JSON", what_, limits_.max_values);
    }
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool add(AnyJson value) {
    place(std::move(value));
    return true;
  }

  bool open(AnyJson container) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      fail(ErrorKind::input, "{}: JSON nested deeper than {} levels", what_, limits_.max_depth);
    }
    stack_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  std::string what_;
  JsonLimits limits_;
  std::size_t num_values_ = 0, num_keys_ = 0;
  AnyJson root_;
  std::vector<AnyJson*> stack_;  // open containers, outermost first
  AnyJson* member_ = nullptr;    // where the value of the last key goes
};

template <class AnyJson>
AnyJson build(std::string_view text, std::string_view what, const JsonLimits& limits) {
  StrictBuilder<AnyJson> builder(what, limits);
  AnyJson::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

template <class AnyJson>
void take_any_apart(AnyJson& json) noexcept {
  if (auto* list = json.template get_ptr<typename AnyJson::array_t*>()) {
    for (; !list->empty(); list->pop_back()) take_any_apart(list->back());
  } else if (auto* object = json.template get_ptr<typename AnyJson::object_t*>()) {
    for (; !object->empty(); object->erase(std::prev(object->end()))) {
      take_any_apart(std::prev(object->end())->second);
    }
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  // The lexer takes a NUL byte for the end of the text and would not look at what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail(ErrorKind::input, "{}: not valid JSON at byte {}: a NUL byte", what, nul);
  }
  return build<Json>(text, what, limits);
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view what,
                               const JsonLimits& limits) {
  {
    Json checked = parse_json(text, what, limits);  // which finds keys that appear twice
    take_apart(checked);
  }
  return build<OrderedJson>(text, what, limits);
}

void take_apart(Json& json) noexcept { take_any_apart(json); }
void take_apart(OrderedJson& json) noexcept { take_any_apart(json); }

}  // namespace dsmoe
