#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a fresh prefix, builds the consumer against it (CMake and pkg-config), runs it on the sample.
# usage: run.sh BUILD_DIR SOURCE_DIR
set -eu
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake -S "$source/tests/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/build" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/build/consumer_cpp" "$source/sample/gpt-oss-tiny"
"$work/build/consumer_c" "$source/sample/gpt-oss-tiny"
config=$(find "$work/prefix" -name motet.pc -exec dirname {} \;)
export PKG_CONFIG_PATH="$config"
cc "$source/tests/consumer/consumer.c" $(pkg-config --cflags --libs motet) -o "$work/c_by_pkg_config" -Wl,-rpath,"$(pkg-config --variable=libdir motet)"
"$work/c_by_pkg_config" "$source/sample/gpt-oss-tiny"
c++ "$source/tests/consumer/consumer.cpp" $(pkg-config --cflags --libs motet-cxx) -o "$work/cpp_by_pkg_config"
"$work/cpp_by_pkg_config" "$source/sample/gpt-oss-tiny"
echo "consumer: C++ and C, by CMake and by pkg-config"
