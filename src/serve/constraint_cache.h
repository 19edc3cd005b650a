// Constraints that were prepared for the model, by content: the same schema is prepared once.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "constrain/constraint.h"
#include "text/tokenizer/tokenizer.h"

namespace dsmoe::serve {

struct ConstraintSpec;

// A cache belongs to one vocabulary; any thread may use it.
class ConstraintCache {
 public:
  // The tokenizer must outlive it. `markers`: special tokens that stand in it may be written.
  ConstraintCache(const text::Tokenizer& tokenizer, int64_t num_ids, std::string markers)
      : tokenizer_(tokenizer), num_ids_(num_ids), markers_(std::move(markers)) {}

  // Throws ApiError(400) about what is not supported, too large, or cannot be satisfied.
  std::shared_ptr<const constrain::Constraint> get(const ConstraintSpec& spec);
  // Made when it is first asked for.
  std::shared_ptr<const constrain::Vocabulary> vocabulary();

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const constrain::Constraint> constraint;
  };
  std::shared_ptr<const constrain::Constraint> find(const std::string& key);
  void keep(Entry entry);

  const text::Tokenizer& tokenizer_;
  int64_t num_ids_;
  std::string markers_;
  std::once_flag made_vocabulary_;
  std::shared_ptr<const constrain::Vocabulary> vocabulary_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
};

}  // namespace dsmoe::serve
