// Which CPU tier runs: the best one this CPU has, or the one DSMOE_ISA names.
#include <fmt/format.h>

#include <cstdlib>

#include "base/cpu_features.h"
#include "base/explain.h"
#include "kernels/cpu/ops.h"
#include "kernels/table.h"

namespace dsmoe::kernels {
namespace {

const KernelTable& v3_table() {
  static const KernelTable table = cpu::make_table<v3::kTier>("v3", ref_table());
  return table;
}

const KernelTable& v4_table() {
  static const KernelTable table = cpu::make_table<v4::kTier>("v4", ref_table());
  return table;
}

const KernelTable& v4_bf16_table() {
  static const KernelTable table = cpu::make_table<v4_bf16::kTier>("v4_bf16", ref_table());
  return table;
}

const KernelTable& amx_table() {
  static const KernelTable table = cpu::make_table<amx::kTier>("amx", ref_table());
  return table;
}

}  // namespace

std::vector<Candidate> cpu_candidates() {
  return {{&amx_table(), "amx", why_unavailable(CpuTier::x86_64_v4_amx)},
          {&v4_bf16_table(), "v4_bf16", why_unavailable(CpuTier::x86_64_v4_bf16)},
          {&v4_table(), "v4", why_unavailable(CpuTier::x86_64_v4)},
          {&v3_table(), "v3", why_unavailable(CpuTier::x86_64_v3)},
          {&ref_table(), "ref", ""}};
}

const KernelTable& select_cpu_table() {
  const std::vector<Candidate> candidates = cpu_candidates();
  const char* wanted = std::getenv("DSMOE_ISA");
  std::string known;
  for (const Candidate& candidate : candidates) {
    known += known.empty() ? "" : ", ";
    known += candidate.name;
    if (wanted == nullptr || *wanted == '\0') {
      if (is_explaining()) {
        explain(fmt::format("tier {}: {}", candidate.name,
                            candidate.declined.empty() ? "chosen" : candidate.declined));
      }
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
