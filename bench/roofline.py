#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A roofline picture of timed cells.

    bench/roofline.py BENCH.json [BENCH.json ...] > docs/performance.svg

Each file is what `motet bench --output json` writes. One panel per shape: operations per weight byte across, operations per second
up, both logarithmic; lines are the read rate and the dot rates probed beside the cells (medians), points are cells.
"""
import json
import math
import statistics
import sys

WIDTH, HEIGHT, MARGIN = 420, 300, 48
COLOURS = ["#1b6ca8", "#c0392b", "#2e7d32", "#8e44ad", "#d68910", "#00838f"]
RATES = {"bf16_tile": "bf16_tile_gflop_per_s", "bf16_dot": "bf16_gflop_per_s", "int16_dot": "int16_gop_per_s",
         "int8_dot": "int8_gop_per_s", "f32": "f32_gflop_per_s"}


def series_of(cell):
    return f"{cell['format']} {cell['residence']} ({cell['target']})"


def dot_rate(cell):
    """The fastest rate among the arithmetics that the cell names, in GFLOP/s."""
    rates = [cell["rates"].get(key, 0) for name, key in RATES.items() if name in cell["arithmetic"]]
    return max(rates, default=0)


class Panel:
    def __init__(self, shape, cells, left, top):
        self.shape, self.cells, self.left, self.top = shape, cells, left, top
        self.x_range = (1, 1e4)
        self.y_range = (10, 1e4)

    def place(self, intensity, rate):
        def share(value, low, high):
            return (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        x = self.left + MARGIN + share(intensity, *self.x_range) * (WIDTH - MARGIN - 12)
        y = self.top + HEIGHT - 36 - share(rate, *self.y_range) * (HEIGHT - 36 - 28)
        return x, y

    def roof(self, read, dot, colour):
        """GB/s and GFLOP/s: y = min(read * x, dot)."""
        points = []
        for step in range(81):
            intensity = self.x_range[0] * (self.x_range[1] / self.x_range[0]) ** (step / 80)
            rate = min(read * intensity, dot)
            if self.y_range[0] <= rate <= self.y_range[1]:
                points.append("%.1f,%.1f" % self.place(intensity, rate))
        return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>'

    def axes(self):
        x0, y0 = self.place(self.x_range[0], self.y_range[0])
        x1, y1 = self.place(self.x_range[1], self.y_range[1])
        out = [f'<rect x="{x0:.1f}" y="{y1:.1f}" width="{x1 - x0:.1f}" height="{y0 - y1:.1f}" fill="none" stroke="#999"/>',
               f'<text x="{x0:.1f}" y="{y1 - 8:.1f}" font-weight="bold">{self.shape}</text>']
        for power in range(0, 5):
            x, _ = self.place(10 ** power, self.y_range[0])
            out.append(f'<text x="{x:.1f}" y="{y0 + 14:.1f}" text-anchor="middle">{10 ** power}</text>')
        for power in range(1, 5):
            _, y = self.place(self.x_range[0], 10 ** power)
            out.append(f'<text x="{x0 - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{10 ** power}</text>')
        out.append(f'<text x="{(x0 + x1) / 2:.1f}" y="{y0 + 28:.1f}" text-anchor="middle">operations per weight byte; up: GFLOP/s</text>')
        return out

    def draw(self, colours):
        out = self.axes()
        for name in dict.fromkeys(series_of(cell) for cell in self.cells):
            mine = [cell for cell in self.cells if series_of(cell) == name]
            read = statistics.median(cell["rates"]["read_gb_per_s"] for cell in mine)
            dot = statistics.median(dot_rate(cell) for cell in mine)
            if read > 0 and dot > 0:
                out.append(self.roof(read, dot, colours[name]))
            for cell in mine:
                if cell["gb_per_s"] <= 0 or cell["gflop_per_s"] <= 0:  # no tokens: no point
                    continue
                x, y = self.place(cell["gflop_per_s"] / cell["gb_per_s"], cell["gflop_per_s"])
                out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colours[name]}">'
                           f'<title>{name}, {cell["tokens"]} tokens: {cell["median_ms"]:.3g} ms</title></circle>')
        return out


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    cells = []
    for path in sys.argv[1:]:
        try:
            with open(path, encoding="utf-8") as file:
                cells += json.load(file)["cells"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"roofline: {path}: must be what `motet bench --output json` writes: {error!r}", file=sys.stderr)
            return 2
    shapes = list(dict.fromkeys(cell["shape"] for cell in cells))
    names = list(dict.fromkeys(series_of(cell) for cell in cells))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    rows = (len(shapes) + 1) // 2
    height = rows * HEIGHT + 20 + 16 * len(names)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{height}" font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>']
    for i, shape in enumerate(shapes):
        panel = Panel(shape, [cell for cell in cells if cell["shape"] == shape], i % 2 * WIDTH, i // 2 * HEIGHT)
        out += panel.draw(colours)
    for i, name in enumerate(names):
        y = rows * HEIGHT + 16 + 16 * i
        out.append(f'<circle cx="{MARGIN}" cy="{y - 4}" r="3.5" fill="{colours[name]}"/><text x="{MARGIN + 10}" y="{y}">{name}; '
                   'lines: read rate and dot rate probed beside it</text>')
    out.append("</svg>")
    print("\n".join(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
