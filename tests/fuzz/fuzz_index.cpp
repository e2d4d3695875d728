// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json. No accepted file name leaves the directory.
#include "checkpoint/source.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return motet::fuzz::run([&] {
    for (const motet::IndexEntry& entry : motet::parse_index(motet::fuzz::text_of_input(data, size))) {
      if (entry.file.empty() || entry.file == "." || entry.file == ".." || entry.file.find('/') != std::string::npos || entry.file.find('\0') != std::string::npos) std::abort();
    }
  });
}
