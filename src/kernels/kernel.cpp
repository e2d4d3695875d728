// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.h"

namespace motet {

std::string_view name_of(KernelArithmetic arithmetic) noexcept {
  static constexpr std::string_view kNames[kArithmetics] = {"f32", "bf16_dot", "bf16_tile", "bf16x2_tile", "int16_dot", "int8_dot"};
  return kNames[static_cast<int>(arithmetic)];
}

const KernelArithmetic* arithmetic_named(std::string_view name) noexcept {
  for (const KernelArithmetic& arithmetic : kAllArithmetics)
    if (name_of(arithmetic) == name) return &arithmetic;
  return nullptr;
}

}  // namespace motet
