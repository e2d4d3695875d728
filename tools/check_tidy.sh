#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over our own sources (not tests) with the compile commands of a build. usage: check_tidy.sh BUILD_DIR
set -eu
build=${1:?usage: check_tidy.sh BUILD_DIR}
git ls-files 'src/*.cpp' | grep -v _test.cpp | xargs -P "$(nproc)" -n 6 clang-tidy -p "$build" --quiet --warnings-as-errors='*' 2>/dev/null
echo "check_tidy: no findings"
