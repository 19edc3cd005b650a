// Whether one value may be of two schemas: the alternatives of oneOf must not share any.
#pragma once

#include "constrain/schema_parts.h"

namespace dsmoe::constrain {

// True only where that is certain: their types differ, their values do, or those of a property
// that both require. `root` is what references refer to.
class SchemaOverlap {
 public:
  explicit SchemaOverlap(const OrderedJson& root) : root_(root) {}
  // Throws Error(input) where it would take too long to say, or a schema is malformed.
  bool are_apart(const At& a, const At& b);

 private:
  void count(std::size_t steps, const At& at);
  const OrderedJson* resolved(const At& at) const;
  bool objects_or_values_are_apart(const At& a, const At& b);
  bool alternatives_are_apart(const OrderedJson& of, const At& a, const At& b);
  bool objects_are_apart(const At& a, const At& b);

  const OrderedJson& root_;
  std::size_t steps_ = 0;
  int depth_ = 0;
};

}  // namespace dsmoe::constrain
