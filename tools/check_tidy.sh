#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over our own sources (not tests) with the compile commands of a build. usage: check_tidy.sh BUILD_DIR [FILE...]
set -euo pipefail
build=${1:?usage: check_tidy.sh BUILD_DIR [FILE...]}
shift
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files 'src/*.cpp' | grep -v -e _test.cpp -e topology_plain.cpp)
# The build's flags are g++'s: clang does not know all of them.
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$build" --quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option 2>&1 |
  { grep -v -e 'warnings generated' -e 'warning generated' || true; }
echo "check_tidy: ${#files[@]} files, no findings"
