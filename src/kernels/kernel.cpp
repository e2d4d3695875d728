// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel.h"

namespace motet {

std::string_view name_of(KernelArithmetic arithmetic) noexcept { return arithmetic == KernelArithmetic::f32 ? "f32" : "bf16_dot"; }

}  // namespace motet
