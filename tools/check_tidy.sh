#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over src/ (tests excepted) with the compile commands of a build. Without --full the clang-analyzer checks, which take
# about two thirds of the time, are left out. usage: check_tidy.sh [--full] BUILD_DIR [FILE...]
set -euo pipefail
usage="usage: check_tidy.sh [--full] BUILD_DIR [FILE...]"
checks="-clang-analyzer-*" name="quick check list"
if [ "${1:-}" = --full ]; then checks="" name="full check list"; shift; fi
build=${1:?$usage}
shift
database=$build/compile_commands.json
[ -f "$database" ] || { echo "check_tidy: clang-tidy needs $database, but there is none; configure the build first" >&2; exit 1; }
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  root=$(cd "$(dirname "$0")/.." && pwd)
  mapfile -t files < <(find "$root/src" -name '*.cpp' ! -name '*_test.cpp' | sort)
  # A build has one of topology_hwloc.cpp and topology_plain.cpp, and mpi_module.cpp where there is MPI.
  for i in "${!files[@]}"; do
    case ${files[i]} in */topology_*.cpp | */mpi_module.cpp) grep -qF "\"${files[i]}\"" "$database" || unset "files[i]" ;; esac
  done
fi
# The build's flags are g++'s: clang does not know all of them, nor can it read its precompiled headers. Sources that are compiled
# for each instruction set are read for one of them, unless --full.
mkdir -p "$build/tidy"
python3 - "$database" "$build/tidy/compile_commands.json" "$name" <<'PYTHON'
import json, re, sys

database, out, name = sys.argv[1:]
entries = {}
for entry in json.load(open(database)):
    entry["command"] = re.sub(r" -include \S*cmake_pch\.hxx", "", entry["command"])
    if name.startswith("full") or entry["file"] not in entries or "MOTET_TARGET=avx512_bf16 " in entry["command"]:
        entries[entry["command" if name.startswith("full") else "file"]] = entry
json.dump(list(entries.values()), open(out, "w"))
PYTHON
printf '%s\0' "${files[@]}" |
  xargs -0 -P "$(nproc)" -n 4 clang-tidy -p "$build/tidy" --quiet --checks="$checks" --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-error 2>&1 |
  { grep -v -e 'warnings generated' -e 'warning generated' || true; }
echo "check_tidy: ${#files[@]} files, $name, no findings"
