// SPDX-License-Identifier: Apache-2.0
// Element types and plain tensor views at Motet's boundary. Views own nothing; whoever made them keeps the bytes alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace motet {

/// Element types, spelled as safetensors spells them (name_of). F8_E4M3 is the FN variant.
enum class DType : std::uint8_t {
  boolean, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64,
  f8_e4m3, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz, f8_e8m0, f6_e2m3, f6_e3m2, f4, c64,
};

/// safetensors' spelling, such as "BF16".
std::string_view name_of(DType dtype) noexcept;
/// Bits of one element (4 for f4, 6 for the f6 types).
int bits_of(DType dtype) noexcept;

/// A contiguous row-major matrix that is only read. `rows` may be 0; `data` may then be null.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// A contiguous row-major matrix that is written.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// Bytes that lie together; read only.
struct ByteSpan {
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

/// The one invalid expert, slot or row id inside Motet (law L7).
inline constexpr std::int32_t kAbsent = -1;

/// A logical expert of the model, 0..experts-1 (zero experts follow). kAbsent = nobody.
enum class ExpertId : std::int32_t {};
/// A physical copy of an expert in the group, 0..slots-1.
enum class SlotId : std::int32_t {};
/// A copy on this rank, 0..local slots-1.
enum class LocalSlotId : std::int32_t {};

}  // namespace motet
