#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The functions of motet.h, the version script and the symbols that libmotet.so exports are the same list.

usage: check_exports.py BUILD_DIR
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
library = pathlib.Path(sys.argv[1]) / "lib" / "libmotet.so"
declared = set(re.findall(r"MOTET_API [^;(]*?\b(motet_\w+)\(", (ROOT / "include/motet/motet.h").read_text()))
listed = set(re.findall(r"^\s+(motet_\w+);", (ROOT / "src/capi/exports.map").read_text(), re.M))
lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout.splitlines()
exported = {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] not in "Aa"}
problems = [f"declared in motet.h but not listed: {name}" for name in sorted(declared - listed)]
problems += [f"listed in exports.map but not declared: {name}" for name in sorted(listed - declared)]
problems += [f"exported but not listed: {name}" for name in sorted(exported - listed)]
problems += [f"listed but not exported: {name}" for name in sorted(listed - exported)]
for problem in problems:
    print(problem)
print(f"check_exports: {len(exported)} symbols, {len(problems)} problems")
sys.exit(1 if problems or not exported else 0)
