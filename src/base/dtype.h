// SPDX-License-Identifier: Apache-2.0
// What an element type is: spelling, size, kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "motet/types.h"

namespace motet {

/// The type that safetensors spells `name`, or none.
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// True for every floating-point type, the 8-, 6- and 4-bit ones and c64 included.
bool is_float(DType dtype) noexcept;

/// Bytes of one element, or 0 when elements are smaller than a byte (f4, f6).
std::int64_t bytes_of(DType dtype) noexcept;

/// Bytes of `count` contiguous elements; none when count is negative, the product overflows, or the bits do not fill whole bytes.
std::optional<std::int64_t> bytes_of(DType dtype, std::int64_t count) noexcept;

/// The element at any address, widened exactly (64-bit integers beyond 2^53 round). Requires a real type of whole bytes.
double load_as_f64(DType dtype, const std::byte* element) noexcept;

}  // namespace motet
