// SPDX-License-Identifier: Apache-2.0
// Vectors of the target being compiled: 16 fp32 lanes (F) and 16 dwords (I), the same small interface for every target.
//
// Only kernel code includes this, in files compiled once per target with MOTET_TARGET defined. Everything is internal to the
// translation unit, so that code built with wide flags can replace nothing elsewhere.
//
//   lanes     zero broadcast load store load_part store_part fma mul sum
//   dwords    iload iload_part in_register istore ibroadcast shl shr sar iand ior, at_least (unsigned maximum), as_float, transpose
//   tables    Table16, table16, lookup: 16 fp32 entries by the low four bits of each dword
//   numbers   f16_low: binary16 in the low half of each dword; widen1, widen2, widen4: neighbouring elements to dwords
//   scales    e8m0_x4: 4 bytes to 4 lanes each; e4m3_x2: 8 bytes to 2 lanes each
//   bf16 dot  (MOTET_HAS_BF16_DOT) dot, PairTable, pair_table, pair_lookup, and the decoders that need byte shuffles
//
// Constants: kFewSums... sums (rows x tokens) that `few` keeps in flight, kTilePanels x kTileTokens sums of a tile of `many`.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(MOTET_TARGET)
#error "vec.h is for files that are compiled per target"
#endif

#define MOTET_VEC [[maybe_unused, gnu::always_inline]] static inline

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define MOTET_HAS_BF16_DOT 1
#else
#define MOTET_HAS_BF16_DOT 0
#endif

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "kernels/vec_avx512.h"
#elif defined(__AVX2__)
#include "kernels/vec_avx2.h"
#else
#include "kernels/vec_generic.h"
#endif
