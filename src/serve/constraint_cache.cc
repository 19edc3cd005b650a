// Least recently used goes first; a bound on the number, and on the memory.
#include "serve/constraint_cache.h"

#include <algorithm>

#include "base/error.h"
#include "serve/api_error.h"
#include "serve/constraint_field.h"

namespace dsmoe::serve {
namespace {

constexpr std::size_t kMaxEntries = 64;
constexpr std::size_t kMaxBytes = std::size_t{128} << 20;

}  // namespace

std::shared_ptr<const constrain::Constraint> ConstraintCache::get(const ConstraintSpec& spec) {
  if (auto known = find(spec.key)) return known;
  try {
    auto made = std::make_shared<const constrain::Constraint>(spec.shape, vocabulary());
    keep({spec.key, made});
    return made;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::input) throw;
    throw ApiError(400, e.what(), spec.field);
  }
}

std::shared_ptr<const constrain::Vocabulary> ConstraintCache::vocabulary() {
  std::call_once(made_vocabulary_,
                 [&] { vocabulary_ = constrain::vocabulary_of(tokenizer_, num_ids_, markers_); });
  return vocabulary_;
}

std::shared_ptr<const constrain::Constraint> ConstraintCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->constraint;
}

void ConstraintCache::keep(Entry entry) {
  const std::lock_guard lock(mutex_);
  entries_.push_front(std::move(entry));
  std::size_t bytes = 0, count = 0;
  for (auto next = entries_.begin(); next != entries_.end();) {
    bytes += next->key.size() + next->constraint->num_bytes();
    // The newest stays in any case.
    const bool fits = ++count == 1 || (count <= kMaxEntries && bytes <= kMaxBytes);
    next = fits ? std::next(next) : entries_.erase(next);
  }
}

}  // namespace dsmoe::serve
