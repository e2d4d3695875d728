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
flags=$(PKG_CONFIG_PATH="$config" pkg-config --cflags --libs motet)
cc "$source/tests/consumer/consumer.c" $flags -o "$work/by_pkg_config" -Wl,-rpath,"$(PKG_CONFIG_PATH="$config" pkg-config --variable=libdir motet)"
"$work/by_pkg_config" "$source/sample/gpt-oss-tiny"
flags=$(PKG_CONFIG_PATH="$config" pkg-config --static --cflags --libs motet)
cc "$source/tests/consumer/consumer.c" -static-libgcc -Wl,-Bstatic $(PKG_CONFIG_PATH="$config" pkg-config --cflags --libs motet) -Wl,-Bdynamic $(printf '%s\n' $flags | grep -v -e -lmotet) -lm -o "$work/by_static"
"$work/by_static" "$source/sample/gpt-oss-tiny"
echo "consumer: C++ and C, by CMake and by pkg-config"
