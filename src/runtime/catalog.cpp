// SPDX-License-Identifier: Apache-2.0
#include "runtime/catalog.h"

#include "backends/backend.h"
#include "comm/strategy.h"
#include "fabric/fabric.h"
#include "formats/format.h"

namespace motet {

const Catalog& catalog() {
  static const Catalog built = [] {
    Catalog catalog;
    for (const Format* format : all_formats()) catalog.formats.push_back(format->facts);
    for (const Backend* backend : all_backends()) catalog.backends.push_back(backend->traits);
    for (const StrategyTraits* strategy : all_strategies()) catalog.strategies.push_back(*strategy);
    for (const FabricTraits* fabric : all_fabrics()) catalog.fabrics.push_back(*fabric);
    return catalog;
  }();
  return built;
}

PlanResult plan(const LayerSpec& spec, const Deployment& deployment, const Environment& environment) {
  return plan_with(spec, deployment, environment, catalog());
}

}  // namespace motet
