// CPUID and XGETBV by hand, because a tier needs the operating system's word as well as the CPU's.
#include "base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace dsmoe {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero for a leaf that the CPU does not have.
Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool bit(uint32_t word, int index) { return ((word >> index) & 1u) != 0; }

// Extended control register 0: which register files the operating system saves.
uint64_t xcr0() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

std::string brand_text() {
  if (cpuid(0x80000000u).eax < 0x80000004u) return "unknown CPU";
  char text[49] = {};
  for (uint32_t part = 0; part < 3; ++part) {
    const Registers r = cpuid(0x80000002u + part);
    std::memcpy(text + 16 * part, &r, sizeof r);
  }
  std::string brand(text);
  const size_t begin = brand.find_first_not_of(' ');
  const size_t end = brand.find_last_not_of(' ');
  return begin == std::string::npos ? "unknown CPU" : brand.substr(begin, end - begin + 1);
}

CpuFeatures read_features() {
  CpuFeatures f;
  f.brand = brand_text();
  const Registers leaf1 = cpuid(1), leaf7 = cpuid(7), leaf7_1 = cpuid(7, 1);
  const bool osxsave = bit(leaf1.ecx, 27);
  const uint64_t saved = osxsave ? xcr0() : 0;
  f.os_avx = (saved & 0x6) == 0x6;          // XMM, YMM
  f.os_avx512 = (saved & 0xe6) == 0xe6;     // and opmask, both halves of ZMM
  f.os_amx = (saved & 0x60000) == 0x60000;  // tile configuration, tile data
  f.avx = f.os_avx && bit(leaf1.ecx, 28);
  f.avx2 = f.os_avx && bit(leaf7.ebx, 5);
  f.fma = f.os_avx && bit(leaf1.ecx, 12);
  f.f16c = f.os_avx && bit(leaf1.ecx, 29);
  f.movbe = bit(leaf1.ecx, 22);
  f.lzcnt = bit(cpuid(0x80000001u).ecx, 5);
  f.bmi1 = bit(leaf7.ebx, 3);
  f.bmi2 = bit(leaf7.ebx, 8);
  f.avx512f = f.os_avx512 && bit(leaf7.ebx, 16);
  f.avx512dq = f.os_avx512 && bit(leaf7.ebx, 17);
  f.avx512cd = f.os_avx512 && bit(leaf7.ebx, 28);
  f.avx512bw = f.os_avx512 && bit(leaf7.ebx, 30);
  f.avx512vl = f.os_avx512 && bit(leaf7.ebx, 31);
  f.avx512_bf16 = f.os_avx512 && bit(leaf7_1.eax, 5);
  f.avx512_vbmi = f.os_avx512 && bit(leaf7.ecx, 1);
  f.avx512_vbmi2 = f.os_avx512 && bit(leaf7.ecx, 6);
  f.sha = bit(leaf1.ecx, 19) && bit(leaf7.ebx, 29);
  f.amx_bf16 = f.os_amx && bit(leaf7.edx, 22);
  f.amx_tile = f.os_amx && bit(leaf7.edx, 24);
  f.amx_int8 = f.os_amx && bit(leaf7.edx, 25);
  return f;
}

struct NamedFlag {
  const char* name;
  bool CpuFeatures::*flag;
  CpuTier first_tier;  // the lowest tier that needs it
};

constexpr NamedFlag kRequired[] = {
    {"avx", &CpuFeatures::avx, CpuTier::x86_64_v3},
    {"avx2", &CpuFeatures::avx2, CpuTier::x86_64_v3},
    {"fma", &CpuFeatures::fma, CpuTier::x86_64_v3},
    {"bmi1", &CpuFeatures::bmi1, CpuTier::x86_64_v3},
    {"bmi2", &CpuFeatures::bmi2, CpuTier::x86_64_v3},
    {"f16c", &CpuFeatures::f16c, CpuTier::x86_64_v3},
    {"lzcnt", &CpuFeatures::lzcnt, CpuTier::x86_64_v3},
    {"movbe", &CpuFeatures::movbe, CpuTier::x86_64_v3},
    {"avx512f", &CpuFeatures::avx512f, CpuTier::x86_64_v4},
    {"avx512bw", &CpuFeatures::avx512bw, CpuTier::x86_64_v4},
    {"avx512cd", &CpuFeatures::avx512cd, CpuTier::x86_64_v4},
    {"avx512dq", &CpuFeatures::avx512dq, CpuTier::x86_64_v4},
    {"avx512vl", &CpuFeatures::avx512vl, CpuTier::x86_64_v4},
    {"avx512-bf16", &CpuFeatures::avx512_bf16, CpuTier::x86_64_v4_bf16},
    {"avx512-vbmi", &CpuFeatures::avx512_vbmi, CpuTier::x86_64_v4_amx},
    {"avx512-vbmi2", &CpuFeatures::avx512_vbmi2, CpuTier::x86_64_v4_amx},
    {"amx-tile", &CpuFeatures::amx_tile, CpuTier::x86_64_v4_amx},
    {"amx-bf16", &CpuFeatures::amx_bf16, CpuTier::x86_64_v4_amx},
};

constexpr NamedFlag kOptional[] = {
    {"amx-int8", &CpuFeatures::amx_int8, CpuTier::x86_64_v4_amx},
};

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = read_features();
  return features;
}

std::string why_unavailable(CpuTier tier, const CpuFeatures& features) {
  if (tier >= CpuTier::x86_64_v3 && !features.os_avx) {
    return "the operating system does not save AVX registers";
  }
  if (tier >= CpuTier::x86_64_v4 && !features.os_avx512) {
    return "the CPU has no AVX-512, or the operating system does not save its registers";
  }
  if (tier >= CpuTier::x86_64_v4_amx && !features.os_amx) {
    return "the CPU has no AMX, or the operating system does not save its tiles";
  }
  std::string missing;
  for (const NamedFlag& required : kRequired) {
    if (required.first_tier <= tier && !(features.*required.flag)) {
      missing += std::string(missing.empty() ? "" : " ") + required.name;
    }
  }
  return missing.empty() ? "" : "the CPU has no " + missing;
}

std::string why_unavailable(CpuTier tier) {
  std::string reason = why_unavailable(tier, cpu_features());
  if (reason.empty() && tier == CpuTier::x86_64_v4_amx && !amx_permitted()) {
    reason = "the kernel refused AMX tile data (needs Linux 5.16 or later)";
  }
  return reason;
}

const char* to_string(CpuTier tier) {
  switch (tier) {
    case CpuTier::baseline:
      return "baseline";
    case CpuTier::x86_64_v3:
      return "v3";
    case CpuTier::x86_64_v4:
      return "v4";
    case CpuTier::x86_64_v4_bf16:
      return "v4_bf16";
    case CpuTier::x86_64_v4_amx:
      return "amx";
  }
  return "unknown";
}

std::string describe(const CpuFeatures& features) {
  std::string text = features.brand + ":";
  for (const NamedFlag& named : kRequired) {
    if (features.*named.flag) text += std::string(" ") + named.name;
  }
  for (const NamedFlag& named : kOptional) {
    if (features.*named.flag) text += std::string(" ") + named.name;
  }
  return text;
}

bool amx_permitted() {
  static const bool permitted = [] {
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
    constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
    if (!cpu_features().amx_tile) return false;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return permitted;
}

}  // namespace dsmoe
