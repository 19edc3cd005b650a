// What answers must look like, ready for one vocabulary; and one answer as it is written.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "constrain/configuration.h"
#include "constrain/local_mask.h"
#include "constrain/shape.h"
#include "constrain/vocabulary.h"

namespace dsmoe::constrain {

// Immutable but for a cache of masks, and safe to share between threads.
class Constraint {
 public:
  // Throws Error(input) that names the place in the schema or pattern: what is not supported, too
  // large or too complex, what no answer can satisfy, or no answer of this vocabulary.
  Constraint(const Shape& shape, std::shared_ptr<const Vocabulary> vocabulary);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const Automaton& automaton() const { return automaton_; }
  std::shared_ptr<const LocalMask> local_mask(int32_t state_idx) const;
  // Tokens that certainly suffice for an answer.
  int32_t shortest() const;
  // All it holds beside the vocabulary; it grows with the masks that answers needed.
  std::size_t num_bytes() const;

 private:
  void prepare_masks();

  std::shared_ptr<const Vocabulary> vocabulary_;
  Automaton automaton_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const LocalMask>> masks_;  // of each state, where known
  mutable std::size_t mask_bytes_ = 0;
};

// One answer. Not shared between threads.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Constraint> constraint);

  // Sets `bits` to the tokens that may come next. `tokens_left`: how many there may be with this
  // one. Where so many suffice to end the answer, only tokens are set after which the rest still
  // suffices: so an answer is whole when its length is used up.
  void allowed(int64_t tokens_left, TokenBits& bits);

  bool may_end() const { return here_.may_end; }
  // Nothing can follow what was written.
  bool must_end() const { return here_.may_end && here_.heads.empty(); }
  // Whether the limit of the length has kept tokens out.
  bool was_narrowed() const { return was_narrowed_; }
  // Throws Error(input) when the token may not come.
  void take(int32_t token);

 private:
  void add_head(const Head& head, int32_t most_rest, TokenBits& bits);
  void add_remainders(const Head& head, const Remainders& remainders, int32_t most_rest,
                      TokenBits& bits);
  void tidy();

  std::shared_ptr<const Constraint> constraint_;
  Frames frames_;
  Stepper stepper_;
  Configuration here_, next_;
  std::vector<Configuration> walk_;
  bool was_narrowed_ = false;
};

}  // namespace dsmoe::constrain
