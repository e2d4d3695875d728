// SPDX-License-Identifier: Apache-2.0
#include "motet/types.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/numbers.h"

namespace motet {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int bits;
  bool is_float;
};
constexpr DTypeRow kDTypes[] = {
    {DType::boolean, "BOOL", 8, false},
    {DType::u8, "U8", 8, false},
    {DType::i8, "I8", 8, false},
    {DType::u16, "U16", 16, false},
    {DType::i16, "I16", 16, false},
    {DType::u32, "U32", 32, false},
    {DType::i32, "I32", 32, false},
    {DType::u64, "U64", 64, false},
    {DType::i64, "I64", 64, false},
    {DType::f16, "F16", 16, true},
    {DType::bf16, "BF16", 16, true},
    {DType::f32, "F32", 32, true},
    {DType::f64, "F64", 64, true},
    {DType::f8_e4m3, "F8_E4M3", 8, true},
    {DType::f8_e5m2, "F8_E5M2", 8, true},
    {DType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8, true},
    {DType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8, true},
    {DType::f8_e8m0, "F8_E8M0", 8, true},
    {DType::f6_e2m3, "F6_E2M3", 6, true},
    {DType::f6_e3m2, "F6_E3M2", 6, true},
    {DType::f4, "F4", 4, true},
    {DType::c64, "C64", 64, true},
};

constexpr bool rows_are_indexed_by_dtype() {
  for (std::size_t i = 0; i < std::size(kDTypes); ++i)
    if (kDTypes[i].dtype != static_cast<DType>(i)) return false;
  return std::size(kDTypes) == static_cast<std::size_t>(DType::c64) + 1;
}
static_assert(rows_are_indexed_by_dtype());

const DTypeRow& row_of(DType dtype) noexcept {
  MOTET_CHECK(static_cast<std::size_t>(dtype) < std::size(kDTypes), "dtype %d", static_cast<int>(dtype));
  return kDTypes[static_cast<std::size_t>(dtype)];
}

/// FNUZ: bias one larger than the OCP type, 0x80 is the only NaN, no negative zero, no infinity.
double fnuz_to_f64(std::uint8_t code, int mantissa, int bias) noexcept {
  if (code == 0x80u) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = static_cast<double>(numbers::decode_magnitude(code & 0x7Fu, mantissa, bias));
  return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

}  // namespace

std::string_view name_of(DType dtype) noexcept { return row_of(dtype).name; }
int bits_of(DType dtype) noexcept { return row_of(dtype).bits; }
bool is_float(DType dtype) noexcept { return row_of(dtype).is_float; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const DTypeRow& row : kDTypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::int64_t bytes_of(DType dtype) noexcept { return bits_of(dtype) / 8; }

std::optional<std::int64_t> bytes_of(DType dtype, std::int64_t count) noexcept {
  std::int64_t bits = 0;
  if (count < 0) return std::nullopt;
  if (bits_of(dtype) % 8 == 0) {
    if (!checked_mul(count, bytes_of(dtype), &bits)) return std::nullopt;
    return bits;
  }
  if (!checked_mul(count, bits_of(dtype), &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

double load_as_f64(DType dtype, const std::byte* element) noexcept {
  const auto byte = std::to_integer<std::uint8_t>(*element);
  switch (dtype) {
    case DType::boolean:
      return byte != 0;
    case DType::u8:
      return byte;
    case DType::i8:
      return static_cast<std::int8_t>(byte);
    case DType::u16:
      return load_unaligned<std::uint16_t>(element);
    case DType::i16:
      return load_unaligned<std::int16_t>(element);
    case DType::u32:
      return load_unaligned<std::uint32_t>(element);
    case DType::i32:
      return load_unaligned<std::int32_t>(element);
    case DType::u64:
      return static_cast<double>(load_unaligned<std::uint64_t>(element));
    case DType::i64:
      return static_cast<double>(load_unaligned<std::int64_t>(element));
    case DType::f16:
      return f16_to_f32(load_unaligned<std::uint16_t>(element));
    case DType::bf16:
      return bf16_to_f32(load_unaligned<std::uint16_t>(element));
    case DType::f32:
      return load_unaligned<float>(element);
    case DType::f64:
      return load_unaligned<double>(element);
    case DType::f8_e4m3:
      return e4m3_to_f32(byte);
    case DType::f8_e5m2:
      return e5m2_to_f32(byte);
    case DType::f8_e4m3fnuz:
      return fnuz_to_f64(byte, 3, 8);
    case DType::f8_e5m2fnuz:
      return fnuz_to_f64(byte, 2, 16);
    case DType::f8_e8m0:
      return e8m0_to_f32(byte);
    case DType::f6_e2m3:
    case DType::f6_e3m2:
    case DType::f4:
    case DType::c64:
      break;
  }
  MOTET_CHECK(false, "%.*s has no single real value of whole bytes", static_cast<int>(name_of(dtype).size()),
              name_of(dtype).data());
  return 0;
}

}  // namespace motet
