// A forward-only reader of JSON text for large files of known structure: bounded memory, no tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsmoe::store {

// base/json.h builds a tree that can take 40 times the memory of a hostile text; headers and
// indices are read with this instead. Every method throws Error(input) that starts with `what` and
// names the byte at which the text is wrong. Duplicate keys are the caller's to refuse, since only
// the caller keeps the keys.
class JsonCursor {
 public:
  // `text` must outlive the cursor.
  JsonCursor(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  // An object is read as: open_object(); while (auto key = next_key()) { read one value }.
  void open_object();
  std::optional<std::string> next_key();

  // An array is read as: open_array(); while (next_element()) { read one value }.
  void open_array();
  bool next_element();

  std::string read_string();
  uint64_t read_unsigned();  // digits only: no sign, no fraction, no leading zero
  void skip_value();         // any valid value, nested at most 64 deep
  void finish();             // only white space may follow

  std::size_t position() const { return pos_; }

 private:
  [[noreturn]] void refuse(std::string_view expected) const;
  void skip_space();
  char peek();
  bool take(char c);
  void expect(char c, std::string_view expected);
  void skip_value(int depth);
  void skip_number();
  void skip_word(std::string_view word);
  void append_escape(std::string& out);
  void append_unescaped(std::string& out);
  uint32_t read_hex4();

  std::string_view text_;
  std::string what_;
  std::size_t pos_ = 0;
  bool first_ = false;  // just after '{' or '[': no comma expected
};

}  // namespace dsmoe::store
