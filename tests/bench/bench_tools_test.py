#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/compare.py and bench/roofline.py over made cells, and over what the program writes.

usage: bench_tools_test.py MOTET
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
MOTET = pathlib.Path(sys.argv.pop(1)).resolve()


def cell(tokens=1, median_ms=2.0, **more):
    return {"shape": "a", "tokens": tokens, "median_ms": median_ms, **more}


class BenchTools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, document):
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    def run_tool(self, tool, *paths):
        return subprocess.run([sys.executable, BENCH / tool, *paths], capture_output=True, text=True, check=False)

    def ratios(self, ours, theirs):
        """{tokens: ratio}, and the exit code."""
        result = self.run_tool("compare.py", self.file("ours.json", {"cells": ours}), self.file("theirs.json", {"cells": theirs}))
        rows = [line.split("|") for line in result.stdout.splitlines()[2:]]
        return {int(row[2]): float(row[7]) for row in rows}, result.returncode

    def test_a_ratio_is_theirs_over_ours(self):
        self.assertEqual(self.ratios([cell(1, 2.0), cell(16, 4.0)], [cell(16, 2.0), cell(1, 5.0)]), ({1: 2.5, 16: 0.5}, 0))

    def test_the_fastest_of_several_cells_counts(self):
        self.assertEqual(self.ratios([cell(1, 9.0), cell(1, 2.0)], [cell(1, 3.0), cell(1, 7.0)]), ({1: 1.5}, 0))

    def test_formats_match_where_both_name_one(self):
        both = [cell(1, 3.0, format="bf16"), cell(1, 6.0, format="mxfp4")]
        self.assertEqual(self.ratios([cell(1, 2.0, format="mxfp4")], both), ({1: 3.0}, 0))
        self.assertEqual(self.ratios([cell(1, 2.0)], both), ({1: 1.5}, 0))
        self.assertEqual(self.ratios([cell(1, 2.0, format="int8")], both), ({}, 1))
        self.assertEqual(self.ratios([cell(1, 2.0, format="int8")], [cell(1, 3.0)]), ({1: 1.5}, 0))

    def test_numbers_in_text_are_numbers(self):
        self.assertEqual(self.ratios([cell("1", "2.0")], [cell(1, 10)]), ({1: 5.0}, 0))

    def test_no_common_cell_is_exit_code_1(self):
        self.assertEqual(self.ratios([cell(1)], [cell(2)]), ({}, 1))

    def test_what_holds_no_cells_is_named_with_exit_code_2(self):
        good = self.file("good.json", {"cells": [cell()]})
        bad = ["", "[]", "{}", '{"cells": 3}', '{"cells": [3]}', {"cells": [{"shape": "a", "tokens": 1}]}, {"cells": [cell(1, 0)]},
               {"cells": [cell(1, -1)]}, {"cells": [cell(1, "NaN")]}, {"cells": [cell("x")]}]
        for i, document in enumerate(bad):
            path = self.file(f"bad{i}.json", document)
            for pair in ((path, good), (good, path)):
                result = self.run_tool("compare.py", *pair)
                self.assertEqual((result.returncode, result.stdout), (2, ""), document)
                self.assertIn(path.name, result.stderr)
                self.assertNotIn("Traceback", result.stderr)
        for tool in ("compare.py", "roofline.py"):
            self.assertEqual(self.run_tool(tool).returncode, 2)
            self.assertIn("none.json", self.run_tool(tool, good, self.folder / "none.json").stderr)

    def test_what_the_program_writes_is_read(self):
        command = [MOTET, "bench", "gpt-oss-20b", "--experts", "4", "--format", "mxfp4", "--tokens", "1,4", "--repeat", "1", "--output", "json"]
        written = self.file("motet.json", subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        compared = self.run_tool("compare.py", written, written)
        self.assertEqual(compared.returncode, 0, compared.stderr)
        self.assertEqual(re.findall(r"\| 1\.00 \|$", compared.stdout, re.M), ["| 1.00 |"] * 2)
        drawn = self.run_tool("roofline.py", written)
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        picture = xml.etree.ElementTree.fromstring(drawn.stdout)
        svg = "{http://www.w3.org/2000/svg}"
        points = [circle for circle in picture.iter(svg + "circle") if circle.find(svg + "title") is not None]
        self.assertEqual([point.find(svg + "title").text.split(":")[0] for point in points],
                         [f"mxfp4 mapped ({json.loads(written.read_text())['cells'][0]['target']}), {tokens} tokens" for tokens in (1, 4)])
        self.assertIn("gpt-oss-20b", [text.text for text in picture.iter(svg + "text")])


if __name__ == "__main__":
    unittest.main()
