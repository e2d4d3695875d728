// SPDX-License-Identifier: Apache-2.0
// What the processor can do and the operating system lets it do. Thread-safe; facts do not change while the program runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace motet {

/// CPUID leaves, XCR0 and the answer of Linux as read; tests fill in another machine. All zero on other architectures.
struct CpuidFacts {
  std::string vendor;  ///< leaf 0, such as "AuthenticAMD"
  std::uint32_t leaf1_eax = 0, leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;
  std::uint64_t xcr0 = 0;  ///< register state that the operating system saves; 0 without OSXSAVE
  int tiles_error = 0;     ///< errno of the request for permission to use tiles; 0 = granted, or there are no tiles to ask for
  std::string brand;       ///< leaves 0x80000002..4
};
/// Where the processor has tiles, also asks Linux for the permission to use them: it holds for all threads of the process, now and
/// later, and nothing needs to ask again.
CpuidFacts read_cpuid();

/// Instruction sets that may be used: present, their registers are saved by the operating system, and it lets this process use them.
struct CpuFeatures {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool avx512vnni = false, avx512vbmi = false, avx512bf16 = false;
  bool amx_tile = false, amx_int8 = false, amx_bf16 = false;
  std::string tiles_refused;  ///< why amx_* are false on a processor that has them; "" otherwise
  std::string vendor;         ///< "amd", "intel", else the CPUID string in lower case; "unknown" without CPUID
  int family = 0, model = 0;  ///< display family and model
  std::string processor;      ///< "VENDOR-FAMILY-MODEL", such as "amd-26-2"
  std::string model_name;     ///< for people
};
CpuFeatures cpu_features(const CpuidFacts& facts);
const CpuFeatures& this_cpu();

/// True when the features have the instruction set that a compiler flag names ("-mavx512bw"); flags that name none, such as
/// "-mprefer-vector-width=512", are true. A flag that begins with "-m" and is not known is false: nothing may rely on it.
bool has_instructions(const CpuFeatures& features, std::string_view compiler_flag) noexcept;

/// People's name of what the flag needs: "-mavx512bf16" -> "AVX-512 BF16". The flag itself when it is not known.
std::string_view instructions_name(std::string_view compiler_flag) noexcept;

}  // namespace motet
