// Chat templates from strangers: any bytes may be refused, none may crash, hang or exhaust memory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/jinja/jinja_eval.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using dsmoe::text::jinja::Variables;
  static const Variables variables = Variables::parse(R"({
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "añ 😀\n"},
                 {"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": {"x": 1.5}}]}],
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "tools": null,
    "n": 7, "m": -2, "f": 0.1, "s": "Hello World", "xs": [3, 1, 2], "d": {"b": 1, "a": [true, "x"]}})");
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const auto parsed = dsmoe::text::jinja::parse(source, "fuzz");
    dsmoe::text::jinja::render(parsed, variables, {.max_steps = 20'000, .steps_per_input_unit = 0});
  } catch (const dsmoe::Error& error) {
    if (error.kind() == dsmoe::ErrorKind::internal) __builtin_trap();
  }
  return 0;
}
