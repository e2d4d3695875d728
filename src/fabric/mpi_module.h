// SPDX-License-Identifier: Apache-2.0
// Between the core, which links no MPI, and motet_mpi.so, the module that holds the mpi fabric.
#pragma once

#include <memory>
#include <string>

#include "fabric/fabric.h"

namespace motet {

/// What the module says of itself. Both sides speak C++, thus must be of one version.
struct MpiModule {
  const char* motet_version;
  const char* mpi_built;         ///< the MPI whose header it was compiled with, such as "Open MPI v4.1"
  std::string (*mpi_running)();  ///< what the MPI library that was loaded calls itself; before MPI_Init too
  std::unique_ptr<Endpoint> (*endpoint)(FabricTime patience);  ///< mpi_endpoint()
};

/// The module's only symbol: a function that returns its MpiModule.
inline constexpr char kMpiModuleSymbol[] = "motet_mpi_module";
using MpiModuleFunction = const MpiModule*();

/// Throws Error(not_supported) when the module is of another Motet, or was built with another MPI than the one that was loaded.
void check_mpi_module(const MpiModule& module, const std::string& file);

}  // namespace motet
