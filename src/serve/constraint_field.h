// The fields of a request that say what its answer must look like, in every spelling.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "constrain/shape.h"

namespace dsmoe::serve {

// What was asked for. Two of one content have the same key, whatever field they came in.
struct ConstraintSpec {
  constrain::Shape shape;
  std::string field;
  std::string key;
};

// Whether a body may hold such a field: preparing it can take a while.
bool may_have_constraint(std::string_view body);

// `text`: the body, for the order of the keys in it. Throws ApiError(400).
std::optional<ConstraintSpec> read_constraint(const Json& body, std::string_view text);

}  // namespace dsmoe::serve
