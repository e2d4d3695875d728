// SPDX-License-Identifier: Apache-2.0
// config.json, "---", hf_quant_config.json: every family describes what the config says of it, whatever its model_type.
#include "checkpoint/family.h"
#include "checkpoint/resolve.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view quantization = motet::fuzz::text_of_input(data, size);
  const std::string_view text = motet::fuzz::next_part(quantization);
  return motet::fuzz::run([&] {
    const motet::Config config(text, quantization);
    motet::fuzz::run([&] { motet::family_of(config); });
    for (const motet::Family* const family : motet::all_families()) {
      motet::fuzz::run([&] { motet::moe_layers(*family, config, 100); });
      motet::fuzz::run([&] {
        motet::LayerSpec spec;
        family->describe(config, spec);
      });
    }
  });
}
