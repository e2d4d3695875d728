// SPDX-License-Identifier: Apache-2.0
// A whole checkpoint without its data: config.json, "---", data bytes in decimal, "---", header JSON. What resolves has every
// tensor of every MoE layer inside the data buffer.
#include <charconv>

#include "checkpoint/resolve.h"
#include "checkpoint/safetensors.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return motet::fuzz::run([&] {
    std::string_view json = motet::fuzz::text_of_input(data, size);
    const motet::Config config(motet::fuzz::next_part(json), "");
    const std::string_view digits = motet::fuzz::next_part(json);
    std::uint32_t data_bytes = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), data_bytes);
    const std::int64_t file_bytes = static_cast<std::int64_t>(8 + json.size()) + data_bytes;
    std::vector<motet::TensorInfo> tensors = motet::parse_safetensors_header(json, file_bytes, "f");
    const motet::Family& family = motet::family_of(config);
    const motet::TensorTable table(tensors);
    const std::vector<std::int64_t> numbers = motet::moe_layers(family, config, table.size());
    std::vector<std::string_view> names;
    for (const motet::TensorInfo& tensor : tensors) names.push_back(tensor.name);
    std::vector<std::string> notes;
    for (const motet::StoredLayer& layer : motet::resolve_layers(table, family, config, motet::layer_prefix(names, family, numbers), numbers, notes)) {
      std::int64_t bytes = 0;
      for (const motet::TensorIndex index : layer.read) bytes += table[index].bytes;
      if (bytes <= 0 || bytes > data_bytes || layer.summary.bytes_per_token < 0 || layer.summary.parameters < layer.summary.parameters_per_token) std::abort();
    }
  });
}
