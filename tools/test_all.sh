#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long runs after `make test`: every target, ThreadSanitizer, the whole clang-tidy list, fuzzing, other seeds, benchmarks.
# Goes on after a failure and lists at the end what ran, what failed, and what was skipped and why. Exit status 1 when a step failed.
# usage: test_all.sh [STEP...]      steps: targets tsan tidy fuzz seeds bench      environment: JOBS, MOTET_FUZZ_SECONDS (60 per target)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
release=build/release
motet=$release/bin/motet
jobs=${JOBS:-$(nproc)}
fuzz_seconds=${MOTET_FUZZ_SECONDS:-60}
report=() failed=0

# step NAME COMMAND...: runs it, notes how it ended.
step() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name: $*"
  if "$@" </dev/null; then
    report+=("ok       $name ($((SECONDS - start)) s)")
  else
    report+=("FAILED   $name ($((SECONDS - start)) s): $*")
    failed=1
  fi
}
skip() { report+=("skipped  $1: $2"); }

# Lines "NAME usable" or "NAME no: REASON" of this machine's targets.
targets() {
  "$motet" doctor --json | python3 -c '
import json, sys
for target in json.load(sys.stdin)["targets"]:
    print(target["name"], "usable" if target["usable"] else "no: " + target["reason"])'
}

run_targets() {
  local name verdict lines
  lines=$(targets) || { step targets false; return; }
  while read -r name verdict; do
    if [ "$verdict" = usable ]; then
      step "target $name" env MOTET_TARGET="$name" ctest --preset release -E '^(consumer|exports|readme)$'
    else
      skip "target $name" "${verdict#no: }"
    fi
  done <<<"$lines"
}

run_tsan() {
  local randomised=()  # ThreadSanitizer of g++ 12 cannot start on some kernels while addresses are randomised
  if setarch -R true 2>/dev/null; then randomised=(setarch -R); fi
  step "tsan configure" cmake --preset tsan
  step "tsan build" cmake --build --preset tsan -j "$jobs" --target base_tests fabric_tests comm_tests runtime_tests laws_tests
  step "tsan tests" "${randomised[@]}" ctest --preset tsan -R '^(base|fabric|comm|runtime|laws)_tests$'
}

run_tidy() { step "clang-tidy, whole list" tools/check_tidy.sh --full "$release"; }

run_fuzz() {
  local build=build/fuzz
  if ! command -v clang++ >/dev/null; then skip fuzz "clang is not installed"; return; fi
  if [ ! -f "$(clang++ -print-resource-dir)/lib/linux/libclang_rt.fuzzer-$(uname -m).a" ]; then
    skip fuzz "clang has no libFuzzer (Debian: libclang-rt-14-dev)"
    return
  fi
  step "fuzz configure" cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
       -DMOTET_BUILD_FUZZ=ON -DMOTET_SANITIZE=address,undefined -DMOTET_FUZZ_SECONDS="$fuzz_seconds"
  step "fuzz build" cmake --build "$build" -j "$jobs" --target fuzz
  step "fuzz, $fuzz_seconds s each" ctest --test-dir "$build" -R '^fuzz_' --no-tests=error --output-on-failure
}

# The table of cases only when one failed.
check_quietly() {
  local output
  output=$("$motet" check --seed "$1") || { echo "$output"; return 1; }
  tail -n 1 <<<"$output"
}

run_seeds() {
  local seed
  for seed in 2 3 4; do step "motet check, seed $seed" check_quietly "$seed"; done
}

# The program ends with 0 when its filter matches nothing.
kernels_bench() {
  local output
  output=$(MOTET_BENCH_MIB=16 "$release/bin/kernels_bench" '--benchmark_filter=/rows/(few|many)/16/' 2>&1) && grep manual_time <<<"$output" ||
    { echo "$output"; return 1; }
}

run_bench() {
  step "motet bench" "$motet" bench gpt-oss-20b --experts 4 --tokens 1,16 --repeat 3
  step "bench configure" cmake --preset release -DMOTET_BUILD_BENCH=ON
  step "bench build" cmake --build --preset release -j "$jobs" --target kernels_bench
  step "kernels_bench" kernels_bench
  cmake --preset release -DMOTET_BUILD_BENCH=OFF >/dev/null  # as make leaves it
}

[ -x "$motet" ] || { echo "test_all: $motet is missing: run make release first" >&2; exit 1; }
[ $# -gt 0 ] || set -- targets tsan tidy fuzz seeds bench
for part in "$@"; do
  case $part in
    targets | tsan | tidy | fuzz | seeds | bench) ;;
    *) echo "test_all: no step '$part'; steps: targets tsan tidy fuzz seeds bench" >&2; exit 2 ;;
  esac
done
for part in "$@"; do "run_$part"; done
echo
printf '%s\n' "${report[@]}"
exit $failed
