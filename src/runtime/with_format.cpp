// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "formats/format.h"
#include "motet/error.h"
#include "motet/registry.h"

namespace motet {
namespace {

// The reduction axis must be whole runs of codes; scale blocks of several rows (fp8) may be ragged.
void must_divide(const FormatFacts& facts, std::int64_t extent, const char* axis) {
  if (extent % facts.values_per_block == 0) return;
  throw Error(ErrorCode::invalid_argument,
              format_text("format %s needs %s to be a multiple of %lld, but it is %lld; choose another format", std::string(facts.name).c_str(), axis,
                          static_cast<long long>(facts.values_per_block), static_cast<long long>(extent)));
}

}  // namespace

LayerSpec with_format(const LayerSpec& spec, const std::string& format) {
  const Format* found = find_format(format);
  if (found == nullptr) {
    std::string known;
    for (const ListEntry& entry : formats()) known += (known.empty() ? "" : ", ") + entry.name;
    throw Error(ErrorCode::invalid_argument, format_text("a format must be one of %s, but is %s", known.c_str(), quoted(format).c_str()));
  }
  must_divide(found->facts, spec.dispatch_width(), spec.latent > 0 ? "latent" : "hidden");
  must_divide(found->facts, spec.intermediate, "intermediate");
  LayerSpec result = spec;
  result.gate_up_order = GateUpOrder::separate;
  for (ProjectionSpec* projection : {&result.gate_up, &result.down}) {
    projection->format = format;
    projection->block_rows = found->facts.block_rows;
    projection->block_cols = found->facts.block_cols;
    projection->transposed = false;
  }
  return result;
}

}  // namespace motet
