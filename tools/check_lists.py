#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every list line has its file and every file its line: formats, backends, fabrics, strategies, families. Exit status 1 names what is missing."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LISTS = [  # list, macro, folder, files of the folder that are no entries, page per entry
    ("src/formats/formats.inc", "MOTET_FORMAT", "src/formats", {"format_list", "packed", "synthetic"}, "docs/formats"),
    ("src/backends/backends.inc", "MOTET_BACKEND", "src/backends", {"backend_list"}, None),
    ("src/fabric/fabrics.inc", "MOTET_FABRIC", "src/fabric", {"fabric_list", "segment", "mpi_module"}, None),
    ("src/comm/strategies.inc", "MOTET_STRATEGY", "src/comm", {"strategy_list", "exchange", "agreement"}, None),
    ("src/checkpoint/families.inc", "MOTET_FAMILY", "src/checkpoint/families", set(), "docs/families"),
]
problems = []
for list_name, macro, folder, others, pages in LISTS:
    names = re.findall(rf"^{macro}\((\w+)\)", (ROOT / list_name).read_text(), re.M)
    if len(names) != len(set(names)):
        problems.append(f"{list_name}: a name stands twice")
    files = {path.stem for path in (ROOT / folder).glob("*.cpp") if not path.stem.endswith("_test")} - others
    problems += [f"{list_name}: '{name}' has no file {folder}/{name}.cpp" for name in names if name not in files]
    problems += [f"{folder}/{name}.cpp: no line {macro}({name}) in {list_name}" for name in sorted(files - set(names))]
    if pages:
        problems += [f"{pages}/{name}.md: page missing for '{name}'" for name in names if not (ROOT / pages / f"{name}.md").exists()]
for problem in problems:
    print(problem)
print(f"check_lists: {len(problems)} problems")
sys.exit(1 if problems else 0)
