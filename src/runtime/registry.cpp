// SPDX-License-Identifier: Apache-2.0
#include "motet/registry.h"

#include "backends/backend.h"
#include "checkpoint/family.h"
#include "comm/strategy.h"
#include "fabric/fabric.h"
#include "formats/format.h"
#include "kernels/kernel.h"
#include "routing/router_names.h"

namespace motet {
namespace {

ListEntry entry(std::string_view name, std::string_view about) { return {std::string(name), std::string(about)}; }

std::string_view about(KernelArithmetic arithmetic) noexcept {
  switch (arithmetic) {
    case KernelArithmetic::f32:
      return "fp32 activations and accumulation; levels exact, bf16 and fast";
    case KernelArithmetic::bf16_dot:
      return "bf16 activations, pairs summed into fp32; levels bf16 and fast";
    case KernelArithmetic::bf16_tile:
      return "bf16 activations in tiles of target amx; levels bf16 and fast";
    case KernelArithmetic::bf16x2_tile:
      return "activations as a high and a low bf16 in tiles of target amx; levels exact, bf16 and fast";
    case KernelArithmetic::int16_dot:
      return "activations as 16-bit integers with a scale per 32; levels exact, bf16 and fast";
    case KernelArithmetic::int8_dot:
      return "activations as 8-bit integers with a scale per 32; level fast";
  }
  return "";
}

}  // namespace

std::vector<ListEntry> formats() {
  std::vector<ListEntry> list;
  for (const Format* format : all_formats()) list.push_back(entry(format->facts.name, format->facts.about));
  return list;
}

std::vector<ListEntry> families() {
  std::vector<ListEntry> list;
  for (const Family* family : all_families()) list.push_back(entry(family->name, family->about));
  return list;
}

std::vector<ListEntry> backends() {
  std::vector<ListEntry> list;
  for (const Backend* backend : all_backends()) list.push_back(entry(backend->traits.name, backend->traits.about));
  return list;
}

std::vector<ListEntry> targets() {
  std::vector<ListEntry> list;
#define MOTET_TARGET_LINE(name, flags, needs) list.push_back(entry(#name, "needs " needs));
#include "kernels/targets.inc"
#undef MOTET_TARGET_LINE
  return list;
}

std::vector<ListEntry> strategies() {
  std::vector<ListEntry> list;
  for (const StrategyTraits* strategy : all_strategies()) list.push_back(entry(strategy->name, strategy->summary));
  return list;
}

std::vector<ListEntry> fabrics() {
  std::vector<ListEntry> list;
  for (const FabricTraits* fabric : all_fabrics()) list.push_back(entry(fabric->name, fabric->summary));
  return list;
}

std::vector<ListEntry> arithmetics() {
  std::vector<ListEntry> list;
  for (const KernelArithmetic arithmetic : kAllArithmetics) list.push_back(entry(name_of(arithmetic), about(arithmetic)));
  list.push_back(entry("double", "double precision, the reference backend alone"));
  return list;
}

std::vector<ListEntry> routers() {
  std::vector<ListEntry> list;
  for (const NamedRouter& router : named_routers()) list.push_back(entry(router.name, router.about));
  return list;
}

std::string_view version() noexcept { return MOTET_VERSION; }

}  // namespace motet
