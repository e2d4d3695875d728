// SPDX-License-Identifier: Apache-2.0
#include "fabric/fabric.h"

namespace motet {

#define MOTET_FABRIC(name) extern const FabricTraits fabric_##name;
#include "fabric/fabrics.inc"
#undef MOTET_FABRIC

const std::vector<const FabricTraits*>& all_fabrics() {
  static const std::vector<const FabricTraits*> list = {
#define MOTET_FABRIC(name) &fabric_##name,
#include "fabric/fabrics.inc"
#undef MOTET_FABRIC
  };
  return list;
}

}  // namespace motet
