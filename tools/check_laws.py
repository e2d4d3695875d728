#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/laws.md names, under each law, exactly the tests whose suite is that law. `--write` brings the page up to date."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/laws.md"
WAITING = "(waits for the exchange between ranks)"

tests = {}
for path in sorted([*ROOT.glob("src/**/*_test.cpp"), *ROOT.glob("tests/**/*_test.cpp")]):
    for law, name in re.findall(r"^TEST(?:_F|_P)?\((L\d+)\w*, (\w+)\)", path.read_text(), re.M):
        tests.setdefault(law, []).append(f"- `{name}` ({path.relative_to(ROOT)})")

problems, sections = [], re.split(r"(?m)^(?=## L\d+ )", PAGE.read_text())
for i, section in enumerate(sections[1:], 1):
    law = re.match(r"## (L\d+) ", section).group(1)
    head = section.split("Held by:")[0]
    held = tests.get(law, [])
    if not held and law not in {"L10", "L13", "L19"}:
        problems.append(f"{law}: no test is named after it")
    wanted = head + ("Held by:\n\n" + "\n".join(held) if held else f"Held by: {WAITING}") + "\n\n"
    if section.rstrip() != wanted.rstrip():
        problems.append(f"{law}: docs/laws.md does not list its {len(held)} tests (tools/check_laws.py --write)")
        sections[i] = wanted
if "--write" in sys.argv:
    PAGE.write_text("".join(sections).rstrip() + "\n")
    problems = [problem for problem in problems if "no test" in problem]
for problem in problems:
    print(problem)
print(f"check_laws: {sum(map(len, tests.values()))} tests, {len(problems)} problems")
sys.exit(1 if problems else 0)
