// SPDX-License-Identifier: Apache-2.0
// How kernel sets that were compiled per target are found by the rest of the program: one strong symbol per (format, target).
#pragma once

#include "kernels/kernel.h"

namespace motet {

namespace format_tag {}  // namespace format_tag
namespace target_tag {}  // namespace target_tag

/// The sets of one format compiled for one target, [kArithmetics] in the order of KernelArithmetic; `few` and `many` are null where
/// the target lacks the arithmetic or the format's values are not exact in it. Defined by MOTET_KERNELS in the format's file; a missing file fails to link.
template <class FormatTag, class TargetTag>
const KernelSet* kernels_of() noexcept;

}  // namespace motet
