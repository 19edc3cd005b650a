// Flags that say what an answer must look like.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/command_line.h"
#include "commands/text_side.h"
#include "constrain/constraint.h"

namespace dsmoe::app {

struct ConstraintFlags {  // at most one
  std::optional<std::string> schema_file, regex;
  std::vector<std::string> choices;
};

void add_constraint_flags(CommandLine& command, ConstraintFlags& flags);

// Null where nothing was asked for. Throws Error that names the flag, and the place in it.
std::shared_ptr<const constrain::Constraint> constraint_of(const ConstraintFlags& flags,
                                                           const TextSide& text, int64_t num_ids);

}  // namespace dsmoe::app
