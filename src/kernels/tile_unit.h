// SPDX-License-Identifier: Apache-2.0
// The tile unit (Intel AMX): eight registers of up to 16 rows of 64 bytes, and the bf16 product of two of them.
//
// TileUnit gives the instructions; TileModel (tile_model.h) has the same members and no need of the processor. Kernels are
// templates over either. Tile numbers are template arguments: the instructions hold them.
//
// One unit per call, configured and released in it. Tiles left in use would make every later context switch save 8 KiB, and a
// configuration that outlives a call would be state between calls that nobody owns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace motet::MOTET_TARGET {
namespace {

/// What LDTILECFG reads: palette 1, rows and bytes per row of each tile.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(int tile, std::int64_t row_count, std::int64_t bytes) {
    rows[tile] = static_cast<std::uint8_t>(row_count);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

/// Asm, not intrinsics: g++ 12 has them as macros over tile numbers, which cannot be template arguments. Volatile statements keep
/// their order, which is all that orders tiles; the memory clobbers order them with what else is loaded and stored.
struct TileUnit {
#define MOTET_TILE_OP [[gnu::always_inline]] inline
  MOTET_TILE_OP void configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  MOTET_TILE_OP void release() { asm volatile("tilerelease"); }
  template <int T>
  MOTET_TILE_OP void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  /// Rows `stride` bytes apart.
  template <int T>
  MOTET_TILE_OP void load(const void* rows, std::int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(rows), "r"(stride) : "memory");
  }
  template <int T>
  MOTET_TILE_OP void store(void* rows, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(rows), "r"(stride) : "memory");
  }
  /// C[m][n] += the sum over pairs k of A[m][k] . B[k][n].
  template <int C, int A, int B>
  MOTET_TILE_OP void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
#undef MOTET_TILE_OP
};

}  // namespace
}  // namespace motet::MOTET_TARGET
