// SPDX-License-Identifier: Apache-2.0
// The mpi fabric as the core sees it: a module that is found and loaded when it is asked for.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "fabric/mpi_module.h"
#include "motet/error.h"

namespace motet {

extern const FabricTraits fabric_mpi;
const FabricTraits fabric_mpi = {.name = "mpi", .summary = "ranks are processes that an MPI launcher started, on one host or many",
                                 .two_sided = true};

namespace {

constexpr char kFile[] = "motet_mpi.so";

/// Where the module may lie; the last place is where the loader looks by itself.
std::vector<std::string> places() {
  const char* const named = std::getenv("MOTET_MPI_MODULE");
  if (named != nullptr && *named != '\0') return {named};
  std::vector<std::string> result;
  Dl_info self{};
  const bool known = dladdr(reinterpret_cast<const void*>(&check_mpi_module), &self) != 0 && self.dli_fname != nullptr;
  if (known && std::string_view(self.dli_fname).find('/') != std::string_view::npos)  // beside the library that holds this
    result.push_back(std::filesystem::path(self.dli_fname).replace_filename(kFile).string());
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error)
    for (const char* const folder : {"../lib", "../" MOTET_LIBDIR})
      result.push_back((program.parent_path() / folder / kFile).lexically_normal().string());
  result.emplace_back(kFile);
  return result;
}

const MpiModule& load() {
  std::string file;
  for (const std::string& place : places()) {
    file = place;
    if (access(place.c_str(), R_OK) == 0) break;
  }
  // Global: Open MPI's own plugins look for its symbols. Never closed: MPI can be started once in a process.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const symbol = library == nullptr ? nullptr : dlsym(library, kMpiModuleSymbol);
  if (symbol == nullptr) {
    const char* const cause = dlerror();
    throw Error(ErrorCode::not_supported,
                format_text("fabric 'mpi' is a module of its own, but %s could not be loaded (%s); install Open MPI (Debian: "
                            "libopenmpi-dev, openmpi-bin) and build Motet again, or name the module's file in MOTET_MPI_MODULE",
                            quoted(file).c_str(), cause == nullptr ? "no cause given" : cause));
  }
  const MpiModule& module = *reinterpret_cast<MpiModuleFunction*>(symbol)();
  check_mpi_module(module, file);
  return module;
}

}  // namespace

void check_mpi_module(const MpiModule& module, const std::string& file) {
  if (std::string_view(module.motet_version) != MOTET_VERSION)
    throw Error(ErrorCode::not_supported,
                format_text("the module of fabric 'mpi' must be of the same Motet, but %s is of version %s and this is %s; install "
                            "both from one build, or name the right file in MOTET_MPI_MODULE",
                            quoted(file).c_str(), module.motet_version, MOTET_VERSION));
  const std::string built = module.mpi_built, running = module.mpi_running();
  if (!running.starts_with(built) ||
      (running.size() > built.size() && running[built.size()] >= '0' && running[built.size()] <= '9'))
    throw Error(ErrorCode::not_supported,
                format_text("fabric 'mpi' runs with the MPI it was built with, which was %s, but the library that was loaded for "
                            "%s says %s; put the right one first in LD_LIBRARY_PATH, or build Motet again with this one",
                            built.c_str(), quoted(file).c_str(), quoted(running).c_str()));
}

std::unique_ptr<Endpoint> mpi_endpoint(FabricTime patience) {
  static const MpiModule& module = load();
  return module.endpoint(patience);
}

}  // namespace motet
