// --json-schema, --regex, --choice.
#include "commands/constraint_flags.h"

#include "base/json.h"
#include "commands/token_list.h"

namespace dsmoe::app {

void add_constraint_flags(CommandLine& command, ConstraintFlags& flags) {
  CommandLine group = command.at_most_one("What the answer must look like");
  group
      .option("--json-schema", flags.schema_file,
              "JSON text of a value that this JSON schema allows")
      .type("FILE");
  group.option("--regex", flags.regex, "all of the answer matches it").type("PATTERN");
  group.option("--choice", flags.choices, "one of these texts; repeatable")
      .type("TEXT")
      .repeatable();
}

std::shared_ptr<const constrain::Constraint> constraint_of(const ConstraintFlags& flags,
                                                           const TextSide& text, int64_t num_ids) {
  using constrain::Shape;
  std::optional<Shape> shape;
  if (flags.schema_file) {
    const std::string& file = *flags.schema_file;
    shape = Shape::schema(parse_ordered_json(read_text_file(file), file), file);
  } else if (flags.regex) {
    shape = Shape::regex(*flags.regex, "--regex");
  } else if (!flags.choices.empty()) {
    shape = Shape::choice(flags.choices, "--choice");
  }
  if (!shape) return nullptr;
  return std::make_shared<const constrain::Constraint>(*shape, text.vocabulary(num_ids));
}

}  // namespace dsmoe::app
