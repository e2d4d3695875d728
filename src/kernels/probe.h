// SPDX-License-Identifier: Apache-2.0
// Measured limits of a processor: what no kernel can exceed. Register-only dot rates and DRAM reads, on an executor's threads.
// Each function allocates nothing and takes about `seconds`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/cpu_features.h"
#include "motet/executor.h"

namespace motet {

enum class DotKind { f32_fma, bf16_dot, int16_dot, int8_dot };
std::string_view name_of(DotKind kind) noexcept;

/// Multiplications plus additions per second over all threads, with the widest vector that `cpu` has for this dot:
/// vfmadd231ps, vdpbf16ps, vpdpwssd, vpdpbusd. 0 when it has none (fp32 has one everywhere).
/// Operands stay in registers, with enough independent sums (12 to 16) to hide the latency. The fastest of many short rounds:
/// nothing but other programs can make a round slower.
double measure_dot_rate(Executor& executor, DotKind kind, const CpuFeatures& cpu, double seconds);

/// Bytes one piece of measure_read_rate covers; `bytes` there is a multiple of it.
inline constexpr std::int64_t kReadPiece = std::int64_t{4} << 20;

/// Bytes per second read from `data`, each thread with four streams through its own part (evidence: one stream per thread reaches
/// half to two thirds of the bandwidth). The median of many rounds that walk through the buffer, each shorter than a time slice, so
/// that other programs spoil some rounds and not all. Requires `bytes` a positive multiple of kReadPiece, 64-byte alignment, and
/// pages that were written: unwritten anonymous memory is one shared page of zeros that lies in the cache.
double measure_read_rate(Executor& executor, const std::byte* data, std::int64_t bytes, const CpuFeatures& cpu, double seconds);

/// True when the bf16 dot of this thread's processor beats its fp32 FMA by more than a fifth. Takes at most 50 ms.
bool bf16_dot_is_faster(const CpuFeatures& cpu);

}  // namespace motet
