// SPDX-License-Identifier: Apache-2.0
// Measured limits of a processor: what no kernel can exceed. Register-only dot rates and DRAM reads, on an executor's threads.
// Measuring allocates nothing and takes about `seconds`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "motet/executor.h"
#include "motet/types.h"

namespace motet {

enum class DotKind { f32_fma, bf16_dot, bf16_tile, int16_dot, int8_dot };
std::string_view name_of(DotKind kind) noexcept;

/// Multiplications plus additions per second over all threads, with the widest vector that `cpu` has for this dot:
/// vfmadd231ps, vdpbf16ps, tdpbf16ps, vpdpwssd, vpdpbusd. 0 when it has none (fp32 has one everywhere).
/// Operands stay in registers, with enough independent sums (12 to 16; four tiles) to hide the latency. The fastest of many short rounds:
/// nothing but other programs can make a round slower.
double measure_dot_rate(Executor& executor, DotKind kind, const CpuFeatures& cpu, double seconds);

/// Most bytes of one piece of measure_read_rate; every piece is a multiple of the unit.
inline constexpr std::int64_t kReadPiece = std::int64_t{4} << 20, kReadUnit = 1024;

/// Cuts spans that do not overlap into pieces for measure_read_rate: of about equal size, several per thread, each aligned to 64
/// bytes and whole units long. Ends of spans that fill no unit are left out.
std::vector<ByteSpan> read_pieces(std::span<const ByteSpan> spans, int threads);

/// Bytes per second read from pieces as read_pieces makes them (at least one), each thread with four streams through a piece of its
/// own (evidence: one stream per thread reaches half to two thirds of the bandwidth). The median of many rounds that walk through
/// the pieces, each shorter than a time slice, so that other programs spoil some rounds and not all. Requires pages that were
/// written or are mapped from a file: unwritten anonymous memory is one shared page of zeros that lies in the cache.
double measure_read_rate(Executor& executor, std::span<const ByteSpan> pieces, const CpuFeatures& cpu, double seconds);

/// True when the bf16 dot of this thread's processor beats its fp32 FMA by more than a fifth. Takes at most 50 ms.
bool bf16_dot_is_faster(const CpuFeatures& cpu);

}  // namespace motet
