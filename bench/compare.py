#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ratios between two sets of timed cells.

    bench/compare.py OURS.json THEIRS.json

Each file is what `motet bench --output json` writes, or any document with "cells": a list of objects that have at least
shape, tokens and median_ms > 0. Cells match when shape, format (where both have it) and tokens are equal; of several cells of one
file that match, the fastest counts. A ratio above 1 means that OURS is that many times faster.
Exit code 0; 1 when no cell matches; 2 when a file cannot be read.
"""
import json
import math
import sys


def cells_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        cells = document["cells"]
        for cell in cells:
            cell.update(shape=str(cell["shape"]), tokens=int(cell["tokens"]), median_ms=float(cell["median_ms"]))
            if not 0 < cell["median_ms"] < math.inf:
                raise ValueError(f"median_ms is {cell['median_ms']}")
        return cells
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"compare: {path}: must hold 'cells' with shape, tokens and median_ms: {error!r}", file=sys.stderr)
        raise SystemExit(2) from None


def fastest(cells):
    best = {}
    for cell in cells:
        key = (cell["shape"], cell.get("format"), cell["tokens"])
        if key not in best or cell["median_ms"] < best[key]["median_ms"]:
            best[key] = cell
    return best


def match(ours, theirs):
    """Pairs of cells: equal shape and tokens, and format unless one names none; the fastest of theirs."""
    for (shape, form, tokens), cell in ours.items():
        others = [other for (its_shape, its_form, its_tokens), other in theirs.items()
                  if its_shape == shape and its_tokens == tokens and (form is None or its_form in (form, None))]
        if others:
            yield cell, min(others, key=lambda other: other["median_ms"])


def what(cell):
    words = [cell.get(key) for key in ("program", "format", "arithmetic", "residence", "target")]
    return " ".join(str(word) for word in words if word) or "-"


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    pairs = list(match(fastest(cells_of(sys.argv[1])), fastest(cells_of(sys.argv[2]))))
    if not pairs:
        print("compare: the files have no cell of the same shape, format and tokens", file=sys.stderr)
        return 1
    print("| shape | tokens | ours | ms | theirs | ms | ratio |\n|---|---|---|---|---|---|---|")
    for ours, theirs in pairs:
        ratio = theirs["median_ms"] / ours["median_ms"]
        print(f"| {ours['shape']} | {ours['tokens']} | {what(ours)} | {ours['median_ms']:.4g} | {what(theirs)} | "
              f"{theirs['median_ms']:.4g} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
