// What must divide what.
#include "train/rank_layout.h"

#include "base/error.h"

namespace dsmoe::train {

void check_layout(const RankLayout& l, int64_t num_experts) {
  const auto divides = [](const char* what, int64_t part, const char* whole_name, int64_t whole,
                          const char* advice) {
    if (part > 0 && whole > 0 && whole % part == 0) return;
    fail(ErrorKind::usage, "{} {} does not divide {} {}; {}", what, part, whole_name, whole,
         advice);
  };
  divides("--expert-parallel", l.expert_ranks, "--ranks", l.ranks,
          "every replica of the experts has the same number of ranks");
  divides("--ranks", l.ranks, "--shards", l.shards,
          "the number of shards belongs to the run; choose a number of ranks that divides it");
  divides("the number of replicas (--ranks / --expert-parallel)", l.replicas(), "--expert-shards",
          l.expert_shards, "expert shards belong to the run; choose other ranks");
  divides("--expert-shards", l.expert_shards, "--shards", l.shards, "choose another number");
  if (l.expert_ranks > 1 && l.expert_ranks > num_experts) {
    fail(ErrorKind::usage, "--expert-parallel {}: the model has {} routed experts to share",
         l.expert_ranks, num_experts);
  }
  DSMOE_CHECK(0 <= l.rank && l.rank < l.ranks, "rank {} of {}", l.rank, l.ranks);
}

}  // namespace dsmoe::train
