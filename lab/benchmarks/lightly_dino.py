"""lightly's DINO with the network of a recipe, to compare learning curves, which `learning_curves.py` draws.

    pip install --target peers --no-deps lightly lightly-utils
    PYTHONPATH=peers python -m lab.benchmarks.lightly_dino --data cifar10/ --out runs/lightly --minutes 15

Architecture, initial weights, optimiser, schedule and number of views are the recipe's; transforms, head, loss and
momentum update are lightly's. It trains for `--minutes` of CPU time, over which the schedule of the recipe is spread,
and writes `config.yaml` and `metrics.jsonl` like our runs. Accuracy is on held-out training images; the time to measure
it is not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from asterism.data import open_source
from asterism.nn.backbone import build_backbone
from asterism.nn.encoder import Encoder
from asterism.ops.schedules import cosine
from asterism.train.online_knn import OnlineKnnConfig, open_online_knn
from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
from asterism.train.recipe import Recipe, load_recipe
from asterism.types import Progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="dino-cifar10")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15, help="of CPU time")
    parser.add_argument("--every", type=float, default=1, help="minutes between measurements")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    train_with_lightly(load_recipe(options.recipe, [f"data.path={options.data}", *options.overrides]), options)


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
    (options.out / "config.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
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
            share = used / (60 * options.minutes)
            progress = Progress(int(share * steps), steps, per_epoch, recipe.trainer.seed)
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
            write(step + 1, loss=loss.item(), cpu_seconds=spent)
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
    values: Any = recipe.method
    transform = DINOTransform(
        global_crop_size=values.global_size or recipe.backbone.image_size,
        global_crop_scale=values.global_scale,
        n_local_views=0,
        random_gray_scale=values.grayscale,
        sigmas=values.blur_sigma,
        solarization_prob=0.0,
    )
    generator = torch.Generator().manual_seed(recipe.trainer.seed)
    while True:
        for places in torch.randperm(len(images), generator=generator).split(batch_size)[:-1]:
            yield lambda places=places: [
                torch.stack(same) for same in zip(*(transform(images[place]) for place in places.tolist()), strict=True)
            ]


if __name__ == "__main__":
    main()
