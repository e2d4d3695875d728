#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder includes only lower floors (or itself); third-party headers have one home each; what stands above the library includes
public headers only. Exit status 1 names every breach."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLOORS = {"base": 0, "plan": 1, "routing": 2, "kernels": 2, "fabric": 2, "formats": 3, "comm": 3,
          "backends": 4, "checkpoint": 4, "runtime": 5, "cli": 6, "capi": 6}
PUBLIC = {"error.h": 0, "types.h": 0, "executor.h": 0, "spec.h": 1, "plan.h": 1, "checkpoint.h": 4, "tensors.h": 4,
          "group.h": 5, "layer.h": 5, "registry.h": 5, "machine.h": 5, "verify.h": 5, "motet.hpp": 5, "motet.h": 6}
# header prefix -> where it may be included (path prefixes below src/)
HOMES = {"nlohmann/": ["base/json.h", "base/json_fwd.h", "cli/"], "hwloc.h": ["base/topology_hwloc.cpp"], "mpi.h": ["fabric/mpi_module.cpp"],
         "CLI/": ["cli/"], "fmt/": ["cli/"], "spdlog/": ["cli/"]}
ONLY_PUBLIC = {"cli", "capi"}
# Outside src/: folders that see Motet as its users do.
USERS = ["bench", "python", "tests/cli", "tests/consumer", "tests/regressions"]
# File of a user folder -> why it may include internal headers all the same.
EXCEPTIONS = {"bench/kernels_bench.cpp": "times single kernels, which no public header shows",
              "bench/exchange_bench.cpp": "times the exchange alone, which no public header shows"}
INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')


def sources(folder):
    return [path for path in sorted((ROOT / folder).glob("**/*")) if path.suffix in {".h", ".hpp", ".c", ".cpp"}]


def internal_includes(path):
    """Lines of a file that include a header of src/."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match and match.group(1).split("/")[0] in FLOORS and (ROOT / "src" / match.group(1)).exists():
            yield number, match.group(1)


def breaches_of_users():
    for folder in USERS:
        for path in sources(folder):
            name = str(path.relative_to(ROOT))
            if name not in EXCEPTIONS:
                for number, header in internal_includes(path):
                    yield f"{name}:{number}: {folder} may include public headers only, not '{header}'"
    for name in EXCEPTIONS:
        if not (ROOT / name).exists() or not any(internal_includes(ROOT / name)):
            yield f"{name}: needs no exception; take it out of tools/check_floors.py"


def breaches():
    for path in sorted(ROOT.glob("src/**/*")):
        if path.suffix not in {".h", ".cpp"} or path.name.endswith("_test.cpp"):
            continue
        relative = path.relative_to(ROOT / "src")
        folder = relative.parts[0]
        floor = FLOORS.get(folder)
        if floor is None:
            yield f"src/{relative}: folder '{folder}' has no floor; add it to tools/check_floors.py"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            header = match.group(1)
            where = f"src/{relative}:{number}"
            top = header.split("/")[0]
            if top == "motet":
                name = header.split("/", 1)[1]
                if name not in PUBLIC:
                    yield f"{where}: public header '{header}' has no floor; add it to tools/check_floors.py"
                elif PUBLIC[name] > floor:
                    yield f"{where}: floor {floor} includes '{header}' of floor {PUBLIC[name]}"
            elif top in FLOORS and "/" in header:
                if top != folder and FLOORS[top] >= floor:
                    yield f"{where}: {folder} (floor {floor}) includes '{header}' of floor {FLOORS[top]}"
                if folder in ONLY_PUBLIC and top != folder:
                    yield f"{where}: {folder} may include public headers only, not '{header}'"
            for prefix, homes in HOMES.items():
                if header.startswith(prefix) and not any(str(relative).startswith(home) for home in homes):
                    yield f"{where}: '{header}' may be included only from {', '.join('src/' + home for home in homes)}"
    for path in sorted(ROOT.glob("include/motet/*")):
        floor = PUBLIC.get(path.name)
        if floor is None:
            yield f"include/motet/{path.name}: no floor; add it to tools/check_floors.py"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if match and (not match.group(1).startswith("motet/") or PUBLIC.get(match.group(1)[6:], 99) > floor):
                yield f"include/motet/{path.name}:{number}: includes '{match.group(1)}' of a higher floor or outside include/"


found = [*breaches(), *breaches_of_users()]
for breach in found:
    print(breach)
print(f"check_floors: {len(found)} breaches")
sys.exit(1 if found else 0)
