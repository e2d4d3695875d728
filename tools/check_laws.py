#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/laws.md has a section for each law and names under it exactly the tests whose suite or name begins with that law.

usage: check_laws.py [--write]      --write brings the lists of tests up to date
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/laws.md"
LAWS = [f"L{number}" for number in range(1, 21)]
UNTESTED = {"L10", "L13", "L19"}  # they speak of several ranks
WAITING = "(waits for the exchange between ranks)"

tests = {}
for path in sorted([*ROOT.glob("src/**/*_test.cpp"), *ROOT.glob("tests/**/*_test.cpp")]):
    for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M):
        law = re.match(r"L\d+", suite) or re.match(r"L\d+", name)
        if law:
            tests.setdefault(law[0], []).append(f"- `{name}` ({path.relative_to(ROOT)})")

sections = re.split(r"(?m)^(?=## L\d+ )", PAGE.read_text())
found = [re.match(r"## (L\d+) ", section)[1] for section in sections[1:]]
problems = []
if found != LAWS:
    problems.append(f"docs/laws.md must have the sections {LAWS[0]} to {LAWS[-1]} once each and in order, but has {', '.join(found)}")
problems += [f"{law}: tests are named after it, but there is no such law" for law in sorted(set(tests) - set(LAWS))]
for i, (law, section) in enumerate(zip(found, sections[1:]), 1):
    head = section.split("Held by:")[0]
    held = tests.get(law, [])
    if not held and law not in UNTESTED:
        problems.append(f"{law}: no test is named after it")
    wanted = head + ("Held by:\n\n" + "\n".join(held) if held else f"Held by: {WAITING}") + "\n\n"
    if section.rstrip() != wanted.rstrip():
        if "--write" not in sys.argv:
            problems.append(f"{law}: docs/laws.md does not list its {len(held)} tests (tools/check_laws.py --write)")
        sections[i] = wanted
if "--write" in sys.argv:
    PAGE.write_text("".join(sections).rstrip() + "\n")
for problem in problems:
    print(problem)
print(f"check_laws: {len(LAWS)} laws, {sum(map(len, tests.values()))} tests, {len(problems)} problems")
sys.exit(1 if problems else 0)
