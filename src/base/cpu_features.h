// What the CPU and the operating system offer: instruction-set tiers, bf16, AMX; and why one is
// missing.
#pragma once

#include <string>

namespace dsmoe {

// A flag is true only when the CPU has it and the operating system saves its registers.
struct CpuFeatures {
  std::string brand;  // "AMD EPYC 9654 96-Core Processor"
  // x86-64-v3
  bool avx = false, avx2 = false, fma = false, bmi1 = false, bmi2 = false, f16c = false;
  bool lzcnt = false, movbe = false;
  // x86-64-v4 adds these
  bool avx512f = false, avx512bw = false, avx512cd = false, avx512dq = false, avx512vl = false;
  bool avx512_bf16 = false;
  bool avx512_vbmi = false, avx512_vbmi2 = false;
  bool sha = false;  // SHA-256 and the SSE4.1 it is used with
  bool amx_tile = false, amx_bf16 = false, amx_int8 = false;
  // The operating system saves YMM, ZMM and tile registers.
  bool os_avx = false, os_avx512 = false, os_amx = false;
};

enum class CpuTier {
  baseline,        // x86-64: the plain reference loops
  x86_64_v3,       // AVX2, FMA
  x86_64_v4,       // AVX-512
  x86_64_v4_bf16,  // AVX-512 with products of bf16 pairs
  x86_64_v4_amx    // AVX-512 and AMX tiles with bf16
};

// Read once by CPUID and XGETBV.
const CpuFeatures& cpu_features();

// "" when the tier can run here, else one line naming what is missing. The AMX tier also needs the
// kernel's permission, which this requests (see amx_permitted).
std::string why_unavailable(CpuTier tier);
std::string why_unavailable(CpuTier tier, const CpuFeatures& features);  // CPU and OS flags only

// "baseline", "v3", "v4", "v4_bf16", "amx": the values of DSMOE_ISA.
const char* to_string(CpuTier tier);

// One line: "AMD EPYC ...: avx2 fma bmi1 bmi2 f16c avx512f ... amx-bf16".
std::string describe(const CpuFeatures& features);

// Asks Linux once per process for the right to use AMX tile data; false where the CPU has none or
// the kernel refuses. Holds for every thread of the process, present and future.
bool amx_permitted();

}  // namespace dsmoe
