"""Line charts and scatter plots as small self-contained SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from jaxtyping import Float, UInt8
from torch import Tensor

Series = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 360, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 26
_COLORS = 8  # of lines, in the style sheet
_CLOUD, _DOT = 300, 4  # side of a scatter plot and radius of a dot


def line_chart(
    title: str, series: Mapping[str, Series], reference: tuple[str, float] | None = None, hint: str = ""
) -> str:
    """Curves over steps, one line per name. reference: label and level of a dashed line; hint: a sentence below."""
    points = [(x, y) for line in series.values() for x, y in line if math.isfinite(y)]
    if not points:
        return ""
    levels = [y for _, y in points] + ([reference[1]] if reference else [])
    x_high = max(x for x, _ in points)
    ticks = _ticks(min(levels), max(levels))
    y_low, y_high = min(ticks[0], *levels), max(ticks[-1], *levels)

    def place(x: float, y: float) -> str:
        across = _LEFT + (x / max(x_high, 1e-12)) * (_WIDTH - _LEFT - _RIGHT)
        down = _TOP + (1 - (y - y_low) / max(y_high - y_low, 1e-12)) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for tick in ticks:
        x, y = place(0, tick).split(",")
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{float(y) + 3:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    for x_tick in (0, x_high // 2, x_high):
        x, _ = place(x_tick, y_low).split(",")
        anchor = "start" if x_tick == 0 else "end" if x_tick == x_high else "middle"
        parts.append(f'<text class="tick" x="{x}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{_short(x_tick)}</text>')
    if reference:
        left, right = place(0, reference[1]), place(x_high, reference[1])
        (x1, y1), (x2, y2) = left.split(","), right.split(",")
        parts.append(f'<line class="reference" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
        parts.append(
            f'<text class="tick" x="{x2}" y="{float(y1) - 4:.1f}" text-anchor="end">{escape(reference[0])}</text>'
        )
    for number, line in enumerate(series.values()):
        path = " ".join(place(x, y) for x, y in _thin(line) if math.isfinite(y))
        parts.append(f'<polyline class="line c{number % _COLORS}" points="{path}"/>')
    ends = {name: [y for _, y in line if math.isfinite(y)][-1:] for name, line in series.items()}
    keys = "".join(
        f'<span class="key c{i % _COLORS}">{escape(name)} {_end(end)}</span>'
        for i, (name, end) in enumerate(ends.items())
    )
    legend = f'<p class="legend">{keys}</p>' if len(series) > 1 else ""
    last = "" if legend else _end(*ends.values())
    drawing = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    said = f'<p class="hint">{escape(hint)}</p>' if hint else ""
    return f'<figure class="chart"><figcaption>{escape(title)} {last}</figcaption>{drawing}{legend}{said}</figure>'


def dot_cloud(title: str, places: Float[Tensor, "n 2"], colors: UInt8[Tensor, "n 3"]) -> str:
    """Coloured dots, scaled to fill a square; distances are meaningful, directions are not."""
    low, high = places.amin(dim=0), places.amax(dim=0)
    room = _CLOUD - 4 * _DOT
    shares = (places - (low + high) / 2) / (high - low).max().clamp_min(1e-9) * room + _CLOUD / 2
    drawn = "".join(
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{_DOT}" fill="#{red:02x}{green:02x}{blue:02x}"/>'
        for (x, y), (red, green, blue) in zip(shares.tolist(), colors.tolist(), strict=True)
    )
    drawing = (
        f'<svg class="cloud" viewBox="0 0 {_CLOUD} {_CLOUD}" role="img" aria-label="{escape(title)}">{drawn}</svg>'
    )
    return f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{drawing}</figure>'


def _end(values: Sequence[float]) -> str:
    """The last value of a curve."""
    return f"<b>{_short(values[0])}</b>" if values else ""


def _thin(line: Series, most: int = 400) -> Series:
    """At most `most` points, each the mean of neighbours: browsers do not open a page with a million points."""
    if len(line) <= most:
        return line
    size = math.ceil(len(line) / most)
    groups = [line[i : i + size] for i in range(0, len(line), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers that span the values."""
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first = math.floor(low / step)
    return [step * i for i in range(first, math.ceil(high / step) + 1)]


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    if abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.4g}"
