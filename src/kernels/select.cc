// Which CPU tier runs: the best one this CPU has, or the one DSMOE_ISA names.
#include <cstdlib>

#include "base/cpu_features.h"
#include "kernels/table.h"

namespace dsmoe::kernels {

std::vector<Candidate> cpu_candidates() { return {{&ref_table(), "ref", ""}}; }

const KernelTable& select_cpu_table() {
  const std::vector<Candidate> candidates = cpu_candidates();
  const char* wanted = std::getenv("DSMOE_ISA");
  std::string known;
  for (const Candidate& candidate : candidates) {
    known += known.empty() ? "" : ", ";
    known += candidate.name;
    if (wanted == nullptr || *wanted == '\0') {
      if (candidate.declined.empty()) return *candidate.table;
    } else if (candidate.name == wanted) {
      if (candidate.declined.empty()) return *candidate.table;
      fail(ErrorKind::usage, "DSMOE_ISA={}: this tier cannot run here: {}", wanted,
           candidate.declined);
    }
  }
  fail(ErrorKind::usage, "DSMOE_ISA={}: no such tier; known tiers: {}", wanted, known);
}

}  // namespace dsmoe::kernels
