"""k-NN accuracy against CPU time: our runs, lightly's DINO with the same network, raw pixels, no training.

    asterism pretrain dino-cifar10 --data cifar10/ --out runs/dino-cifar10
    PYTHONPATH=peers python benchmarks/learning_curves.py lightly --data cifar10/ --out runs/lightly --minutes 120
    python benchmarks/learning_curves.py draw runs/dino-cifar10 runs/mae-cifar10 runs/lightly --svg curves.svg

`lightly` trains the network of a recipe (same architecture, initial weights, optimiser, schedule and number of views)
with lightly's own transforms, head, loss and momentum update, for `--minutes` of CPU time, and writes `metrics.jsonl`
like our runs. Accuracy is on held-out training images; the time to measure it is not counted for any run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asterism.data import open_source
from asterism.nn.backbone import build_backbone
from asterism.nn.encoder import Encoder
from asterism.ops.schedules import cosine
from asterism.train.metrics import read_metrics
from asterism.train.online_knn import OnlineKnnConfig, open_online_knn
from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
from asterism.train.recipe import Recipe, load_recipe
from asterism.types import Progress

COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a", "#bc4c00", "#3d4f00")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    peer = commands.add_parser("lightly")
    peer.add_argument("--recipe", default="dino-cifar10")
    peer.add_argument("--data", required=True)
    peer.add_argument("--out", type=Path, required=True)
    peer.add_argument("--minutes", type=float, default=120, help="of CPU time")
    peer.add_argument("--every", type=float, default=5, help="minutes between measurements")
    drawing = commands.add_parser("draw")
    drawing.add_argument("runs", nargs="+", type=Path)
    drawing.add_argument("--svg", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "lightly":
        train_with_lightly(load_recipe(options.recipe, [f"data.path={options.data}"]), options)
    else:
        options.svg.write_text(chart({path.name: curve(path) for path in options.runs}, levels(options.runs)))


# --- lightly's DINO -------------------------------------------------------------------------------------------------


class LightlyDino(nn.Module):
    """Student and teacher of the recipe's network with lightly's heads."""

    def __init__(self, recipe: Recipe) -> None:
        from lightly.models.modules import DINOProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        super().__init__()
        torch.manual_seed(recipe.trainer.seed)
        values: Any = recipe.method
        self.backbone = build_backbone(recipe.backbone)
        sizes = (self.backbone.dim, values.hidden_dim, values.bottleneck_dim, values.out_dim)
        self.head = DINOProjectionHead(*sizes, freeze_last_layer=values.freeze_last_layer)
        self.teacher = build_backbone(recipe.backbone)
        self.teacher_head = DINOProjectionHead(*sizes)
        self.teacher.load_state_dict(self.backbone.state_dict())
        self.teacher_head.load_state_dict(self.head.state_dict())
        for part in (self.teacher, self.teacher_head):
            deactivate_requires_grad(part)

    def forward(self, views: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        with torch.no_grad():
            teacher = [self.teacher_head(self.teacher(view).cls) for view in views]
        return teacher, [self.head(self.backbone(view).cls) for view in views]


def train_with_lightly(recipe: Recipe, options: argparse.Namespace) -> None:
    """Train until the CPU time is used up."""
    from lightly.loss import DINOLoss
    from lightly.models.utils import update_momentum

    values: Any = recipe.method
    model = LightlyDino(recipe)
    loss_of = DINOLoss(output_dim=values.out_dim, teacher_temp=values.teacher_temp, warmup_teacher_temp_epochs=0)
    optimizer = build_optimizer(model, recipe.optim)
    steps, batch_size = recipe.trainer.steps, recipe.trainer.batch_size
    assert isinstance(steps, int)
    assert isinstance(batch_size, int)
    knn = open_online_knn(recipe.monitor.knn or OnlineKnnConfig(), recipe.data)
    assert knn is not None
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "metrics.jsonl").open("w") as log:

        def write(step: int, **record: float) -> None:
            log.write(json.dumps({"step": step, **record}) + "\n")
            log.flush()

        encoder = Encoder(model.teacher, recipe.data.mean, recipe.data.std)
        write(0, knn=knn.accuracy(encoder.eval()))
        used = next_measure = 0.0
        per_epoch = len(open_source(recipe.data.path, recipe.data.split)) // batch_size
        for step, views in enumerate(lightly_views(recipe, batch_size)):
            before = time.process_time()
            progress = Progress(min(step, steps - 1), steps, per_epoch, recipe.trainer.seed)
            teacher, student = model(views())
            loss = loss_of(teacher, student, epoch=progress.epoch)
            loss.backward()
            set_schedules(optimizer, recipe.optim, progress, batch_size)
            clip_gradients(model.parameters(), recipe.optim)
            optimizer.step()
            optimizer.zero_grad()
            momentum = cosine(progress.step, steps, values.momentum, 1.0)
            update_momentum(model.backbone, model.teacher, momentum)
            update_momentum(model.head, model.teacher_head, momentum)
            spent = time.process_time() - before
            used += spent
            write(step + 1, loss=loss.item(), cpu_seconds=spent, images=batch_size)
            if used >= next_measure or used >= 60 * options.minutes:
                next_measure += 60 * options.every
                write(step + 1, knn=knn.accuracy(encoder.eval()))
            if used >= 60 * options.minutes:
                return


def lightly_views(recipe: Recipe, batch_size: int) -> Iterator[Any]:
    """A function per step that makes the two views of its images, so that its time is counted."""
    from lightly.transforms import DINOTransform
    from torchvision.transforms.functional import to_pil_image

    source = open_source(recipe.data.path, recipe.data.split)
    images = [to_pil_image(source[place].image) for place in range(len(source))]
    size, values = recipe.backbone.image_size, recipe.method
    assert size is not None
    transform = DINOTransform(
        global_crop_size=size,
        global_crop_scale=values.global_scale,  # type: ignore[attr-defined]
        n_local_views=0,
        random_gray_scale=values.grayscale,  # type: ignore[attr-defined]
        sigmas=values.blur_sigma,  # type: ignore[attr-defined]
        solarization_prob=0.0,
    )
    generator = torch.Generator().manual_seed(recipe.trainer.seed)
    while True:
        for places in torch.randperm(len(images), generator=generator).split(batch_size)[:-1]:
            yield lambda places=places: [
                torch.stack(same) for same in zip(*(transform(images[place]) for place in places.tolist()), strict=True)
            ]


# --- the figure -----------------------------------------------------------------------------------------------------


def curve(run: Path) -> list[tuple[float, float]]:
    """(CPU minutes, k-NN accuracy), from a run's metrics."""
    minutes, points = 0.0, []
    for record in read_metrics(run):
        minutes += record.get("cpu_seconds", 0.0) / 60
        if "knn" in record:
            points.append((minutes, record["knn"]))
    return points


def levels(runs: Sequence[Path]) -> dict[str, float]:
    """Raw pixels and the untrained networks, as measured before the first step of the runs."""
    pixels = [record["knn_pixels"] for run in runs for record in read_metrics(run) if "knn_pixels" in record]
    untrained = [points[0][1] for run in runs if (points := curve(run)) and points[0][0] == 0]
    found = {"raw pixels": pixels, "untrained (mean)": untrained}
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def chart(curves: dict[str, list[tuple[float, float]]], dashed: dict[str, float]) -> str:
    """A self-contained SVG."""
    width, height, left, bottom, right, top = 860, 460, 56, 44, 200, 16
    points = [point for line in curves.values() for point in line]
    longest = max(x for x, _ in points) or 1.0
    values = [y for _, y in points] + list(dashed.values())
    low, high = 5 * int(min(values) // 5), 5 * int(max(values) // 5 + 1)

    def across(minutes: float) -> float:
        return left + minutes / longest * (width - left - right)

    def down(value: float) -> float:
        return top + (high - value) / (high - low) * (height - top - bottom)

    def text(x: float, y: float, words: str, anchor: str = "start", color: str = "#24292f") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{escape(words)}</text>'

    parts = []
    for value in range(low, high + 1, 5):
        y = down(value)
        parts.append(
            f'<path d="M{left} {y:.0f}H{width - right}" stroke="#d0d7de"/>' + text(left - 8, y + 4, f"{value}", "end")
        )
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(text(across(share * longest), height - bottom + 18, f"{share * longest:.3g}", "middle"))
    parts.append(text((left + width - right) / 2, height - 8, "minutes of the processor, all cores together", "middle"))
    parts.append(text(left, 12, "k-NN accuracy on held-out training images, %"))
    for name, value in dashed.items():
        parts.append(f'<path d="M{left} {down(value):.0f}H{width - right}" stroke="#57606a" stroke-dasharray="5 4"/>')
        parts.append(text(width - right + 8, down(value) + 4, f"{name} {value:.1f}", color="#57606a"))
    ends = sorted(((line[-1][1], name) for name, line in curves.items()), reverse=True)
    for number, (name, line) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        place = ends.index((line[-1][1], name))
        parts.append(text(width - right + 8, top + 24 + 16 * place, f"{name} {line[-1][1]:.1f}", color=color))
    style = 'font-family="sans-serif" font-size="12"'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'


if __name__ == "__main__":
    main()
