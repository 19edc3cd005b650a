// parse_json: any bytes either parse, and then print and parse again to the same value, or are
// refused by Error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  dsmoe::Json value;
  try {
    value = dsmoe::parse_json(text, "fuzz");
  } catch (const dsmoe::Error&) {
    return 0;
  }
  if (dsmoe::parse_json(value.dump(), "fuzz again") != value) std::abort();
  return 0;
}
