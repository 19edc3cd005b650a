// Tiers follow from flags, missing ones are named, and this machine's answer agrees with the
// compiler's builtin.
#include "base/cpu_features.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

CpuFeatures everything() {
  CpuFeatures f;
  f.brand = "Test CPU";
  f.avx = f.avx2 = f.fma = f.bmi1 = f.bmi2 = f.f16c = f.lzcnt = f.movbe = true;
  f.avx512f = f.avx512bw = f.avx512cd = f.avx512dq = f.avx512vl = f.avx512_bf16 = true;
  f.avx512_vbmi = f.avx512_vbmi2 = true;
  f.amx_tile = f.amx_bf16 = f.amx_int8 = true;
  f.os_avx = f.os_avx512 = f.os_amx = true;
  return f;
}

TEST(CpuFeatures, TiersNameWhatIsMissing) {
  CpuFeatures f = everything();
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v4_amx, f), "");
  f.amx_bf16 = false;
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v4_amx, f), "the CPU has no amx-bf16");
  f.avx512_bf16 = false;
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v4_bf16, f), "the CPU has no avx512-bf16");
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v4, f), "");
  f.avx512vl = f.avx512bw = false;
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v4, f), "the CPU has no avx512bw avx512vl");
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v3, f), "");
  f.os_avx512 = false;
  EXPECT_NE(why_unavailable(CpuTier::x86_64_v4, f).find("operating system"), std::string::npos);
  f.fma = false;
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v3, f), "the CPU has no fma");
  EXPECT_EQ(why_unavailable(CpuTier::baseline, f), "");
  EXPECT_NE(why_unavailable(CpuTier::x86_64_v3, CpuFeatures{}), "");
}

TEST(CpuFeatures, DescribesInOneLine) {
  EXPECT_EQ(describe(everything()),
            "Test CPU: avx avx2 fma bmi1 bmi2 f16c lzcnt movbe avx512f avx512bw avx512cd avx512dq "
            "avx512vl avx512-bf16 avx512-vbmi avx512-vbmi2 "
            "amx-tile amx-bf16 amx-int8");
  EXPECT_EQ(describe(cpu_features()).find('\n'), std::string::npos);
}

TEST(CpuFeatures, AgreesWithTheCompilersBuiltin) {
  const CpuFeatures& f = cpu_features();
  EXPECT_FALSE(f.brand.empty());
  EXPECT_EQ(f.avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(f.fma, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(f.avx512f, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(f.avx512vl, __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(f.avx512_bf16, __builtin_cpu_supports("avx512bf16") != 0);
  EXPECT_EQ(f.avx512_vbmi, __builtin_cpu_supports("avx512vbmi") != 0);
  EXPECT_EQ(f.avx512_vbmi2, __builtin_cpu_supports("avx512vbmi2") != 0);
}

TEST(CpuFeatures, AmxTierNeedsPermission) {
  if (!cpu_features().amx_tile) {
    EXPECT_FALSE(amx_permitted());
  }
  EXPECT_EQ(why_unavailable(CpuTier::x86_64_v4_amx).empty(),
            amx_permitted() && why_unavailable(CpuTier::x86_64_v4_amx, cpu_features()).empty());
}

TEST(CpuFeatures, TierNames) {
  EXPECT_STREQ(to_string(CpuTier::baseline), "baseline");
  EXPECT_STREQ(to_string(CpuTier::x86_64_v3), "v3");
  EXPECT_STREQ(to_string(CpuTier::x86_64_v4), "v4");
  EXPECT_STREQ(to_string(CpuTier::x86_64_v4_bf16), "v4_bf16");
  EXPECT_STREQ(to_string(CpuTier::x86_64_v4_amx), "amx");
}

}  // namespace
}  // namespace dsmoe
