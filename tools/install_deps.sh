#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Names the packages that building (and testing) needs and installs the missing ones with apt on Debian 12.
# Elsewhere it names them and stops with exit status 3. usage: install_deps.sh [build|test|test-all]
set -eu
packages="g++ cmake ninja-build pkg-config nlohmann-json3-dev libhwloc-dev libcli11-dev libfmt-dev libspdlog-dev libgtest-dev"
case ${1:-build} in
  build) ;;
  test) packages="$packages clang-tidy binutils python3 libopenmpi-dev openmpi-bin" ;;
  test-all) packages="$packages clang-tidy binutils python3 libopenmpi-dev openmpi-bin clang libclang-rt-14-dev libbenchmark-dev" ;;
  *) echo "usage: install_deps.sh [build|test|test-all]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
  for tool in g++ cmake ninja; do
    command -v $tool >/dev/null 2>&1 || { echo "motet: '$tool' is missing. On Debian 12 these packages are needed: $packages" >&2; exit 3; }
  done
  exit 0
fi
missing=""
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "motet: needs these Debian packages:$missing" >&2
. /etc/os-release
if [ "${ID:-}" != debian ] || [ "${VERSION_ID:-}" != 12 ]; then
  echo "motet: this is ${PRETTY_NAME:-not Debian 12}: please install them (or their equivalents) and run make again." >&2
  exit 3
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -q >/dev/null
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >/dev/null
