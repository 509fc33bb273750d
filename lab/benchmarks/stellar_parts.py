"""Time of the parts of a STELLAR step by batch size: the rows of the paper's table 12, on this machine.

    python -m lab.benchmarks.stellar_parts --backbone vit_base_patch16_224 --batches 4 8 16 32 64 --plot table12.svg

Forward passes without gradients, as in the table: the clean view through the encoder, the decoder, the masked views
through the encoder, balanced targets (Sinkhorn and Knopp), and the matching of all masked views by entropic transport
and by the Hungarian algorithm. Each number is the median of several runs after a warm-up.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from asterism.methods.stellar import Stellar, StellarConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.vocabulary import VocabularyConfig
from asterism.ops import assignment
from asterism.ops.concept_alignment import match_concepts
from asterism.ops.random import fold_each

PAPER = {  # seconds on one A100, batches of 4, 8, 16, 32, 64
    "encoder": (8.2e-3, 9.1e-3, 1.4e-2, 2.0e-2, 3.2e-2),
    "decoder": (4.6e-3, 6.8e-3, 8.8e-3, 1.2e-2, 1.5e-2),
    "masked views": (7.9e-3, 8.9e-3, 1.1e-2, 1.8e-2, 1.7e-2),
    "clustering": (3.4e-4, 3.4e-4, 3.4e-4, 3.7e-4, 3.9e-4),
    "transport matching": (1.4e-3, 1.4e-3, 1.4e-3, 1.4e-3, 1.2e-3),
    "Hungarian matching": (5.7e-3, 1.7e-2, 4.0e-2, 9.0e-2, 1.8e-1),
}
PAPER_BATCHES = (4, 8, 16, 32, 64)


def parts(method: Stellar, batch: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """The computation of each row, with its inputs prepared."""
    config, size, g = method.config, method.global_size, torch.Generator().manual_seed(0)
    pixels = torch.randn(batch, 3, size, size, generator=g).to(device)
    views = pixels.repeat(config.masked_views, 1, 1, 1)
    keys = fold_each(torch.arange(batch, device=device), 0)
    keep = torch.cat([mask.keep(method.grid, config.mask_ratio) for mask in method.draw_masks(keys)])
    tokens = method.backbone(pixels)
    S, U = tokens.registers, tokens.patches
    decoder, localization, alignment = method.reconstruction, method.localization, config.alignment
    assert decoder is not None
    assert localization is not None
    mixed = localization(U, S) @ S
    masked = method.backbone(views, keep=keep).registers.unflatten(0, (config.masked_views, batch)).transpose(0, 1)
    logits = method.vocabulary(S).flatten(0, 1) @ method.vocabulary.prototypes.T
    return {
        "encoder": lambda: method.backbone(pixels),
        "decoder": lambda: decoder(mixed, tokens.grid),
        "masked views": lambda: method.backbone(views, keep=keep),
        "clustering": lambda: assignment.sinkhorn_knopp(logits, alignment.target_temp, alignment.sinkhorn_iterations),
        "transport matching": lambda: match_concepts(masked, S, alignment),
        "Hungarian matching": lambda: assignment.hungarian(assignment.distances(masked, S[:, None])),
    }


def seconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def table(title: str, batches: Sequence[int], rows: Mapping[str, Sequence[float]]) -> str:
    lines = [f"{title:<22}" + "".join(f"{batch:>10}" for batch in batches)]
    lines += [f"{name:<22}" + "".join(f"{value:>10.1e}" for value in values) for name, values in rows.items()]
    return "\n".join(lines)


def plot(batches: Sequence[int], rows: Mapping[str, Sequence[float]], title: str) -> str:
    """Seconds over batch size, both axes logarithmic, as SVG."""
    width, height, left, right, top, bottom = 640, 400, 70, 150, 40, 40
    colours = ("#3366cc", "#dc3912", "#109618", "#ff9900", "#990099", "#0099c6")
    low = math.floor(math.log10(min(map(min, rows.values()))))
    high = math.ceil(math.log10(max(map(max, rows.values()))))

    def x(batch: int) -> float:
        span = math.log2(batches[-1] / batches[0]) or 1
        return left + math.log2(batch / batches[0]) / span * (width - left - right)

    def y(value: float) -> float:
        return top + (high - math.log10(value)) / (high - low) * (height - top - bottom)

    shapes = [f'<text x="{left}" y="20" font-size="14">{title}</text>']
    for power in range(low, high + 1):
        level = y(10.0**power)
        shapes.append(f'<line x1="{left}" x2="{width - right}" y1="{level}" y2="{level}" stroke="#ddd"/>')
        shapes.append(f'<text x="{left - 8}" y="{level + 4}" text-anchor="end">{10.0**power:g} s</text>')
    shapes += [f'<text x="{x(b)}" y="{height - 16}" text-anchor="middle">{b}</text>' for b in batches]
    shapes.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 2}" text-anchor="middle">images per batch</text>'
    )
    names = apart([y(values[-1]) for values in rows.values()], distance=15)
    for colour, level, (name, values) in zip(colours, names, rows.items(), strict=True):
        points = " ".join(f"{x(b):.1f},{y(v):.1f}" for b, v in zip(batches, values, strict=True))
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shapes.append(f'<text x="{width - right + 8}" y="{level + 4:.1f}" fill="{colour}">{name}</text>')
    style = 'font-family="sans-serif" font-size="12"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>'
        f'<rect width="{width}" height="{height}" fill="white"/>{"".join(shapes)}</svg>'
    )


def apart(levels: Sequence[float], distance: float) -> list[float]:
    """The levels, moved down where they would be closer than `distance` to the one above."""
    placed, above = list(levels), -math.inf
    for index in sorted(range(len(levels)), key=levels.__getitem__):
        above = placed[index] = max(levels[index], above + distance)
    return placed


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="vit_base_patch16_224")
    parser.add_argument("--batches", type=int, nargs="+", default=PAPER_BATCHES)
    parser.add_argument("--prototypes", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--plot", type=Path, default=None, help="an SVG file to write")
    options = parser.parse_args()

    device = torch.device(options.device)
    torch.manual_seed(0)
    vocabulary = VocabularyConfig(prototypes=options.prototypes)
    method = Stellar(StellarConfig(vocabulary=vocabulary, class_vocabulary=None), BackboneConfig(name=options.backbone))
    method.to(device).eval()
    rows: dict[str, list[float]] = {name: [] for name in PAPER}
    for batch in options.batches:
        for name, work in parts(method, batch, device).items():
            rows[name].append(seconds(work, options.repeats, device))
            print(f"batch {batch}, {name}: {rows[name][-1]:.2e} s", file=sys.stderr, flush=True)
    print(table(f"{options.backbone}, {device}", options.batches, rows))
    print(table("paper, A100", PAPER_BATCHES, PAPER))
    if options.plot is not None:
        options.plot.write_text(plot(options.batches, rows, f"STELLAR, {options.backbone} on {device}"))
        print(f"written to {options.plot}")


if __name__ == "__main__":
    main()
