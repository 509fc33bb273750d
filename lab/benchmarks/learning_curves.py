"""k-NN accuracy on held-out training images against CPU time and images seen, of any runs, as one SVG.

    python -m lab.benchmarks.learning_curves DINO=runs/dino STELLAR=runs/mae+runs/stellar --svg curves.svg

A run that starts from another one (`first+second`) is drawn after it. Raw pixels and the mean of the untrained networks
are dashed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from asterism.train.metrics import read_metrics
from asterism.train.run import Run

COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a", "#bc4c00", "#3d4f00")
WIDTH, HEIGHT, GAP, LEGEND = 360, 360, 52, 240  # of a panel, the space before it, and the names at the right
TOP, BOTTOM, LINE = 40, 40, 17
TICKS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]

Curve = list[tuple[float, float, float]]  # core-minutes, images seen, accuracy in percent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="+", metavar="NAME=RUN[+RUN]")
    parser.add_argument("--svg", type=Path, required=True)
    options = parser.parse_args()
    named = {
        name: [Path(run) for run in runs.split("+")] for name, _, runs in (x.partition("=") for x in options.lines)
    }
    curves = {name: [point for part in continued(runs) for point in part] for name, runs in named.items()}
    options.svg.write_text(figure(curves, levels([runs[0] for runs in named.values()])))


def continued(runs: Sequence[Path]) -> Iterator[Curve]:
    """The curves of runs of which each starts where the one before it ends."""
    minutes = images = 0.0
    for run in runs:
        part = [(minutes + at, images + seen, value) for at, seen, value in curve(run)]
        minutes, images, _ = part[-1]
        yield part


def curve(run: Path) -> Curve:
    batch = Run(run).config["trainer"]["batch_size"]
    minutes, points = 0.0, []
    for record in read_metrics(run):
        minutes += record.get("cpu_seconds", 0.0) / 60
        if "knn" in record:
            points.append((minutes, record["step"] * batch, record["knn"]))
    return points


def levels(runs: Sequence[Path]) -> dict[str, float]:
    """Raw pixels and the untrained networks, as measured before the first step of the runs."""
    pixels = [record["knn_pixels"] for run in runs for record in read_metrics(run) if "knn_pixels" in record]
    untrained = [points[0][2] for run in runs if (points := curve(run)) and points[0][1] == 0]
    found = {"raw pixels": pixels, "untrained, mean": untrained}
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def figure(curves: Mapping[str, Curve], dashed: Mapping[str, float]) -> str:
    """Two panels with the same lines, and their names at the right in the order of their ends."""
    values = [point[2] for line in curves.values() for point in line] + list(dashed.values())
    low, high = 5 * int(min(values) // 5), 5 * int(max(values) // 5 + 1)
    names = sorted(curves, key=lambda name: -curves[name][-1][2])
    width, height = 2 * (WIDTH + GAP) + LEGEND, HEIGHT + TOP + BOTTOM
    parts = [f'<rect width="{width}" height="{height}" fill="white"/>', text(GAP, 18, "k-NN accuracy, %", "start")]
    for panel, title in enumerate(("core-minutes", "images seen, thousands")):
        lines = {
            name: [(point[0] if panel == 0 else point[1] / 1000, point[2]) for point in curves[name]] for name in names
        }
        left = GAP + panel * (WIDTH + GAP)
        parts.append(f'<g transform="translate({left} {TOP})">{panel_of(lines, dashed, low, high, title)}</g>')
    for number, name in enumerate(names):
        words = f"{name} {curves[name][-1][2]:.1f}"
        parts.append(text(width - LEGEND + 12, TOP + 10 + LINE * number, words, "start", COLORS[number % len(COLORS)]))
    for number, (name, value) in enumerate(dashed.items(), start=len(names) + 1):
        parts.append(text(width - LEGEND + 12, TOP + 10 + LINE * number, f"{name} {value:.1f} (dashed)", "start"))
    style = 'font-family="sans-serif" font-size="12"'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'


def panel_of(
    lines: Mapping[str, Sequence[tuple[float, float]]], dashed: Mapping[str, float], low: int, high: int, title: str
) -> str:
    longest = max(line[-1][0] for line in lines.values())

    def down(value: float) -> float:
        return (high - value) / (high - low) * HEIGHT

    parts = []
    for value in range(low, high + 1, 5):
        parts.append(f'<path d="M0 {down(value):.0f}H{WIDTH}" stroke="#d0d7de"/>')
        parts.append(text(-8, down(value) + 4, f"{value}", "end"))
    step = next(size for size in TICKS if longest / size < 6)
    for place in range(int(longest / step) + 1):
        parts.append(text(place * step / longest * WIDTH, HEIGHT + 16, f"{place * step}", "middle"))
    parts.append(text(WIDTH / 2, HEIGHT + 34, title, "middle"))
    for value in dashed.values():
        parts.append(f'<path d="M0 {down(value):.0f}H{WIDTH}" stroke="#57606a" stroke-dasharray="5 4"/>')
    for number, line in enumerate(lines.values()):
        path = " ".join(f"{x / longest * WIDTH:.1f},{down(y):.1f}" for x, y in line)
        color = COLORS[number % len(COLORS)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
    return "".join(parts)


def text(x: float, y: float, words: str, anchor: str, color: str = "#24292f") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{escape(words)}</text>'


if __name__ == "__main__":
    main()
