// SPDX-License-Identifier: Apache-2.0
// Header JSON of a safetensors file: data bytes in decimal, "---", JSON. What is accepted tiles the data buffer.
#include <charconv>

#include "checkpoint/safetensors.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return motet::fuzz::run([&] {
    std::string_view json = motet::fuzz::text_of_input(data, size);
    const std::string_view digits = motet::fuzz::next_part(json);
    std::uint32_t data_bytes = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), data_bytes);
    const auto begin = static_cast<std::int64_t>(8 + json.size());
    std::int64_t end = begin;
    for (const motet::TensorInfo& tensor : motet::parse_safetensors_header(json, begin + data_bytes, "f")) {
      if (tensor.bytes < 0 || tensor.offset != end) std::abort();
      end += tensor.bytes;
    }
    if (end != begin + data_bytes) std::abort();
  });
}
