#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects compiled for a wide target export no weak symbol, so that no wide code can replace generic code at link time.

usage: check_symbols.py BUILD_DIR   (a release build; generic objects are free to share inline functions)
"""
import pathlib
import subprocess
import sys

build = pathlib.Path(sys.argv[1])
objects = [path for path in sorted(build.glob("CMakeFiles/motet_kernels_*.dir/**/*.o")) if "motet_kernels_generic" not in str(path)]
if not objects:
    sys.exit(f"check_symbols: no per-target objects under {build}: build it first")
problems = []
for path in objects:
    for line in subprocess.run(["nm", "--defined-only", path], check=True, capture_output=True, text=True).stdout.splitlines():
        kind, name = line.split()[-2:]
        if kind in "WVu" and not name.startswith("DW.ref"):
            problems.append(f"{path.relative_to(build)}: weak symbol {name}")
for problem in problems:
    print(problem)
print(f"check_symbols: {len(objects)} objects, {len(problems)} weak symbols")
sys.exit(1 if problems else 0)
