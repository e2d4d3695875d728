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
//   integers  izero iadd isub ixor, to_float, to_int (nearest even, below 2^22), divide; dot4: 4 unsigned times 4 signed bytes per
//   dword,
//             dots: the same for N vectors; dot2: 2 signed words per dword; NibbleTable, nibble_table, nibble_lookup: 16 signed
//             bytes by the low four bits of each byte; even_words, odd_words: signed bytes 0 and 2, 1 and 3 of a dword as words;
//             pack_words, pack_bytes: dwords to words, words 0..255 to bytes, in order; even_dwords, odd_dwords (of each quad of
//             two vectors), even_quads, odd_quads (of two vectors); order_words: words of each quad by a table; byte_lanes
//   bf16 dot  (MOTET_HAS_BF16_DOT) dot, PairTable, pair_table, pair_lookup, and the decoders that need byte shuffles;
//             split_bf16
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

MOTET_VEC void prefetch_l2(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

/// The tile unit, or its model (tile_model.h).
#if MOTET_HAS_BF16_DOT && ((defined(__AMX_TILE__) && defined(__AMX_BF16__)) || MOTET_TILE_MODEL)
#define MOTET_HAS_TILES 1
#else
#define MOTET_HAS_TILES 0
#endif

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "kernels/vec_avx512.h"
#elif defined(__AVX2__)
#include "kernels/vec_avx2.h"
#else
#include "kernels/vec_generic.h"
#endif
