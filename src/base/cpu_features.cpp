// SPDX-License-Identifier: Apache-2.0
// Bit positions: Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E. They agree. Permission for tiles: Linux,
// Documentation/arch/x86/xstate.rst: the first use of tiles by a process without it is SIGILL.
#include "base/cpu_features.h"

#include <cctype>
#include <cerrno>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace motet {
namespace {

constexpr int kTileBit = 24;                  // of leaf 7 edx
constexpr std::uint64_t kTileState = 0x60000;  // of XCR0: tile configuration and data

struct InstructionRow {
  std::string_view flag, name;
  bool CpuFeatures::*feature;
};
constexpr InstructionRow kInstructions[] = {
    {"-mavx2", "AVX2", &CpuFeatures::avx2},
    {"-mfma", "FMA", &CpuFeatures::fma},
    {"-mf16c", "F16C", &CpuFeatures::f16c},
    {"-mavx512f", "AVX-512 F", &CpuFeatures::avx512f},
    {"-mavx512bw", "AVX-512 BW", &CpuFeatures::avx512bw},
    {"-mavx512dq", "AVX-512 DQ", &CpuFeatures::avx512dq},
    {"-mavx512vl", "AVX-512 VL", &CpuFeatures::avx512vl},
    {"-mavx512vnni", "AVX-512 VNNI", &CpuFeatures::avx512vnni},
    {"-mavx512vbmi", "AVX-512 VBMI", &CpuFeatures::avx512vbmi},
    {"-mavx512bf16", "AVX-512 BF16", &CpuFeatures::avx512bf16},
    {"-mamx-tile", "AMX TILE", &CpuFeatures::amx_tile},
    {"-mamx-int8", "AMX INT8", &CpuFeatures::amx_int8},
    {"-mamx-bf16", "AMX BF16", &CpuFeatures::amx_bf16},
};

const InstructionRow* row_of(std::string_view flag) noexcept {
  for (const InstructionRow& row : kInstructions)
    if (row.flag == flag) return &row;
  return nullptr;
}

std::string vendor_name(const std::string& vendor) {
  if (vendor.empty()) return "unknown";
  if (vendor == "AuthenticAMD") return "amd";
  if (vendor == "GenuineIntel") return "intel";
  std::string lower;
  for (const char c : vendor)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return lower.empty() ? "unknown" : lower;
}

}  // namespace

CpuidFacts read_cpuid() {
  CpuidFacts facts;
#if defined(__x86_64__)
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return facts;
  const std::uint32_t last_leaf = a;
  char text[48];
  std::memcpy(text, &b, 4);
  std::memcpy(text + 4, &d, 4);
  std::memcpy(text + 8, &c, 4);
  facts.vendor.assign(text, 12);
  __cpuid(1, facts.leaf1_eax, b, facts.leaf1_ecx, d);
  if (last_leaf >= 7) {
    std::uint32_t last_subleaf = 0;
    __cpuid_count(7, 0, last_subleaf, facts.leaf7_ebx, facts.leaf7_ecx, facts.leaf7_edx);
    if (last_subleaf >= 1) __cpuid_count(7, 1, facts.leaf7_1_eax, b, c, d);
  }
  if ((facts.leaf1_ecx >> 27 & 1u) != 0) {  // OSXSAVE: xgetbv may be used
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    facts.xcr0 = static_cast<std::uint64_t>(high) << 32 | low;
  }
  if ((facts.leaf7_edx >> kTileBit & 1u) != 0 && (facts.xcr0 & kTileState) == kTileState) {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    facts.tiles_error = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? 0 : errno;
  }
  __cpuid(0x80000000u, a, b, c, d);
  if (a >= 0x80000004u) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      __cpuid(0x80000002u + i, a, b, c, d);
      const std::uint32_t words[4] = {a, b, c, d};
      std::memcpy(text + 16 * i, words, 16);
    }
    facts.brand.assign(text, strnlen(text, sizeof text));
    const std::size_t begin = facts.brand.find_first_not_of(' '), end = facts.brand.find_last_not_of(' ');
    facts.brand = begin == std::string::npos ? "" : facts.brand.substr(begin, end - begin + 1);
  }
#endif
  return facts;
}

CpuFeatures cpu_features(const CpuidFacts& facts) {
  CpuFeatures features;
  const auto bit = [](std::uint32_t word, int position) { return (word >> position & 1u) != 0; };
  const auto saved = [&](std::uint64_t mask) { return (facts.xcr0 & mask) == mask; };
  const bool ymm = saved(0x6);          // SSE and AVX state
  const bool zmm = ymm && saved(0xE0);  // opmask, upper halves, upper registers
  const bool tiles = saved(kTileState) && facts.tiles_error == 0;
  features.avx2 = ymm && bit(facts.leaf7_ebx, 5);
  features.fma = ymm && bit(facts.leaf1_ecx, 12);
  features.f16c = ymm && bit(facts.leaf1_ecx, 29);
  features.avx512f = zmm && bit(facts.leaf7_ebx, 16);
  features.avx512dq = zmm && bit(facts.leaf7_ebx, 17);
  features.avx512bw = zmm && bit(facts.leaf7_ebx, 30);
  features.avx512vl = zmm && bit(facts.leaf7_ebx, 31);
  features.avx512vbmi = zmm && bit(facts.leaf7_ecx, 1);
  features.avx512vnni = zmm && bit(facts.leaf7_ecx, 11);
  features.avx512bf16 = zmm && bit(facts.leaf7_1_eax, 5);
  features.amx_bf16 = tiles && bit(facts.leaf7_edx, 22);
  features.amx_tile = tiles && bit(facts.leaf7_edx, kTileBit);
  features.amx_int8 = tiles && bit(facts.leaf7_edx, 25);
  if (facts.tiles_error != 0)
    features.tiles_refused = std::string("Linux does not let this process use AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM: ") +
                             std::strerror(facts.tiles_error) + ")";

  const int base_family = static_cast<int>(facts.leaf1_eax >> 8 & 0xF), base_model = static_cast<int>(facts.leaf1_eax >> 4 & 0xF);
  features.family = base_family == 15 ? base_family + static_cast<int>(facts.leaf1_eax >> 20 & 0xFF) : base_family;
  features.model = base_family == 6 || base_family == 15 ? base_model + static_cast<int>(facts.leaf1_eax >> 12 & 0xF0) : base_model;
  features.vendor = vendor_name(facts.vendor);
  features.processor = features.vendor + "-" + std::to_string(features.family) + "-" + std::to_string(features.model);
  features.model_name = facts.brand.empty() ? features.processor : facts.brand;
  return features;
}

const CpuFeatures& this_cpu() {
  static const CpuFeatures features = cpu_features(read_cpuid());
  return features;
}

bool has_instructions(const CpuFeatures& features, std::string_view flag) noexcept {
  const InstructionRow* const row = row_of(flag);
  return row != nullptr ? features.*(row->feature)
                        : !flag.starts_with("-m") || flag.starts_with("-mprefer-") || flag.starts_with("-mtune=");
}

std::string_view instructions_name(std::string_view flag) noexcept {
  const InstructionRow* const row = row_of(flag);
  return row != nullptr ? row->name : flag;
}

}  // namespace motet
