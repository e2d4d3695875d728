// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace motet {
namespace {

/// A machine with every bit set, so that each test can take one away.
CpuidFacts everything() {
  CpuidFacts facts;
  facts.vendor = "AuthenticAMD";
  facts.leaf1_ecx = facts.leaf7_ebx = facts.leaf7_ecx = facts.leaf7_edx = facts.leaf7_1_eax = ~0u;
  facts.xcr0 = ~std::uint64_t{0};
  return facts;
}

TEST(CpuFeatures, NeedTheRegistersSavedByTheOperatingSystem) {
  CpuidFacts facts = everything();
  facts.xcr0 = 0x7;  // x87, SSE, AVX
  CpuFeatures features = cpu_features(facts);
  EXPECT_TRUE(features.avx2 && features.fma && features.f16c);
  EXPECT_FALSE(features.avx512f || features.avx512bf16 || features.avx512vnni || features.amx_tile);
  facts.xcr0 = 0xE7;
  features = cpu_features(facts);
  EXPECT_TRUE(features.avx512f && features.avx512bf16);
  EXPECT_FALSE(features.amx_bf16);
  facts.xcr0 = 0xE5;  // AVX-512 state without AVX state does not help
  EXPECT_FALSE(cpu_features(facts).avx512f);
  facts.xcr0 = 0;
  EXPECT_FALSE(cpu_features(facts).avx2);
}

TEST(CpuFeatures, TilesNeedThePermissionOfLinux) {
  CpuidFacts facts = everything();
  EXPECT_TRUE(cpu_features(facts).amx_tile && cpu_features(facts).amx_int8 && cpu_features(facts).amx_bf16);
  EXPECT_EQ(cpu_features(facts).tiles_refused, "");
  facts.tiles_error = EPERM;
  const CpuFeatures features = cpu_features(facts);
  EXPECT_FALSE(features.amx_tile || features.amx_int8 || features.amx_bf16);
  EXPECT_TRUE(features.avx512bf16);
  EXPECT_NE(features.tiles_refused.find("ARCH_REQ_XCOMP_PERM: Operation not permitted"), std::string::npos);
}

TEST(CpuFeatures, EachBitStandsForItsOwnFeature) {
  CpuidFacts facts = everything();
  facts.leaf7_1_eax = ~(1u << 5);
  EXPECT_FALSE(cpu_features(facts).avx512bf16);
  EXPECT_TRUE(cpu_features(facts).avx512vnni);
  facts = everything();
  facts.leaf7_ecx = ~(1u << 11);
  EXPECT_FALSE(cpu_features(facts).avx512vnni);
  EXPECT_TRUE(cpu_features(facts).avx512vbmi);
}

TEST(CpuFeatures, NamesVendorFamilyAndModel) {
  CpuidFacts facts = everything();
  facts.leaf1_eax = 0x00B00F21;  // extended family 11, family 15, extended model 0, model 2, stepping 1
  EXPECT_EQ(cpu_features(facts).processor, "amd-26-2");
  facts.vendor = "GenuineIntel";
  facts.leaf1_eax = 0x000C06F2;
  EXPECT_EQ(cpu_features(facts).processor, "intel-6-207");
  facts.vendor = "HygonGenuine";
  EXPECT_EQ(cpu_features(facts).vendor, "hygongenuine");
  facts = CpuidFacts{};
  EXPECT_EQ(cpu_features(facts).processor, "unknown-0-0");
}

TEST(CpuFeatures, CompilerFlagsNameWhatTheyNeed) {
  const CpuFeatures all = cpu_features(everything());
  EXPECT_TRUE(has_instructions(all, "-mavx512bf16"));
  EXPECT_TRUE(has_instructions(CpuFeatures{}, "-mprefer-vector-width=512"));
  EXPECT_FALSE(has_instructions(CpuFeatures{}, "-mavx2"));
  EXPECT_FALSE(has_instructions(all, "-mavx10.2")) << "an instruction set nobody listed must not be relied on";
  EXPECT_EQ(instructions_name("-mavx512bf16"), "AVX-512 BF16");
}

#if defined(__x86_64__)
TEST(CpuFeatures, AgreeWithTheKernelsList) {
  std::ifstream file("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  if (flags.empty()) GTEST_SKIP() << "no /proc/cpuinfo";
  const CpuFeatures& cpu = this_cpu();
  EXPECT_EQ(cpu.avx2, flags.count("avx2") == 1);
  EXPECT_EQ(cpu.f16c, flags.count("f16c") == 1);
  EXPECT_EQ(cpu.avx512f, flags.count("avx512f") == 1);
  EXPECT_EQ(cpu.avx512bw, flags.count("avx512bw") == 1);
  EXPECT_EQ(cpu.avx512vnni, flags.count("avx512_vnni") == 1);
  EXPECT_EQ(cpu.avx512vbmi, flags.count("avx512vbmi") == 1);
  EXPECT_EQ(cpu.avx512bf16, flags.count("avx512_bf16") == 1);
  EXPECT_EQ(cpu.amx_tile, flags.count("amx_tile") == 1 && cpu.tiles_refused.empty());
}
#endif

}  // namespace
}  // namespace motet
