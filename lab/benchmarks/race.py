"""Training steps, views, k-NN and COCO's evaluation next to public implementations of the same thing, in one run.

    python -m lab.benchmarks.race [--size miniature small] [--race dino ibot mae views knn] [--rounds 5] [--memory]

Both sides get the same network size, the same number of views of the same random pixels, and one thread. A step is all
that training does once the pixels are there: momentum encoder, student, loss, backward pass, clipping where the method
has it, AdamW, moving averages. Peers are written as their own examples write them: `lightly` is its DINO, iBOT and MAE
example, with torch's default AdamW; `transformers` is ViTMAEForPreTraining; `timm` is the floor: the same ViT's passes
alone, without head, loss, optimiser and averages. lightly's iBOT centres with masked patches alone, the published one
with all: `asterism, masked centre` computes what lightly does.

Sides alternate (A B A B …) and the best round of each counts. Times are CPU time of one thread, so that other programs
delay nothing that is counted. Memory is the peak of a fresh process above what it used before the side was built.
GFLOP are those of the matrix products of a step, as torch counts them: the ratio of two sides is what one gains over
the other with equally fast products.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

Step = Callable[[], object]


@dataclass(frozen=True)
class Size:
    """A network, its views and its batch."""

    image: int
    patch: int
    dim: int
    depth: int
    local: int  # pixels of a small view
    local_views: int
    prototypes: int
    images: int  # per batch
    decoder: tuple[int, int, int]  # width, blocks and heads of MAE's decoder

    @property
    def heads(self) -> int:
        return self.dim // 64


SIZES = {
    "miniature": Size(64, 8, 192, 6, 32, 4, 4096, 32, (128, 4, 4)),
    "small": Size(224, 16, 384, 12, 96, 4, 65536, 8, (512, 8, 16)),
}
_TINY = Size(64, 8, 64, 1, 32, 1, 64, 2, (64, 1, 1))  # only to import everything


def pixels(size: Size) -> tuple[list[Tensor], list[Tensor]]:
    """Two large views, and the small ones."""
    source = torch.Generator().manual_seed(0)
    large, small = (2, size.image), (size.local_views, size.local)
    return tuple(  # type: ignore[return-value]
        [torch.randn(size.images, 3, side, side, generator=source) for _ in range(count)]
        for count, side in (large, small)
    )


def ours(name: str, size: Size, *changes: str) -> Step:
    """A step of a method, as the training loop makes it."""
    from asterism.ops.random import fold_each
    from asterism.train.building import build_method
    from asterism.train.optim import build_optimizer, clip_gradients, set_schedules
    from asterism.train.recipe import load_recipe
    from asterism.types import Batch, CropGeometry, Progress, View

    width, blocks, heads = size.decoder
    settings = {
        "mae": [f"method.decoder_dim={width}", f"method.decoder_depth={blocks}", f"method.decoder_heads={heads}"],
    }.get(
        name,
        [
            f"method.local_views={size.local_views}",
            f"method.local_size={size.local}",
            f"method.out_dim={size.prototypes}",
            "method.hidden_dim=2048",
            "method.bottleneck_dim=256",
            "method.freeze_last_layer=0",
        ],
    )
    network = [f"backbone.image_size={size.image}", f"backbone.patch_size={size.patch}", f"backbone.dim={size.dim}"]
    network += [f"backbone.depth={size.depth}", "backbone.drop_path=0.0"]
    recipe = load_recipe(name, ["data.path=scenes", "trainer.accelerator=cpu", *network, *settings, *changes])
    method = build_method(recipe).train()
    optimizer = build_optimizer(method, recipe.optim)
    index = torch.arange(size.images)
    shown = []
    for view in [view for views in pixels(size) for view in views][: len(method.views)]:
        zero, side = torch.zeros(size.images), torch.full((size.images,), float(view.shape[-1]))
        geometry = CropGeometry(zero, zero, side, side, side, side, torch.zeros(size.images, dtype=torch.bool))
        shown.append(View(view, geometry))
    batch, progress = Batch(tuple(shown), index, fold_each(index, 0)), Progress(step=500, steps=1000, steps_per_epoch=5)

    def step() -> None:
        set_schedules(optimizer, recipe.optim, progress, size.images)
        method.loss(batch, progress).total.backward()
        clip_gradients(method.parameters(), recipe.optim)
        optimizer.step()
        optimizer.zero_grad()
        method.after_update(progress)

    return step


def timm_network(size: Size, **options: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    sizes: dict[str, Any] = {"img_size": size.image, "patch_size": size.patch, "embed_dim": size.dim}
    return VisionTransformer(depth=size.depth, num_heads=size.heads, num_classes=0, **sizes | options)


def timm_multi_crop(size: Size) -> Step:
    """The passes of DINO and iBOT alone: the large views without gradient, then every view with it."""
    network = timm_network(size, dynamic_img_size=True)
    large, small = pixels(size)

    def step() -> None:
        with torch.no_grad():
            network(torch.cat(large))
        sum(network(torch.cat(views)).sum() for views in (large, small)).backward()  # type: ignore[union-attr]
        network.zero_grad()

    return step


def lightly_dino(size: Size) -> Step:
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum

    student = timm_network(size, dynamic_img_size=True)
    teacher = copy.deepcopy(student)
    widths = (size.dim, 2048, 256, size.prototypes)
    head, teacher_head = (DINOProjectionHead(*widths, freeze_last_layer=-1) for _ in range(2))
    deactivate_requires_grad(teacher)
    deactivate_requires_grad(teacher_head)
    criterion = DINOLoss(output_dim=size.prototypes, warmup_teacher_temp_epochs=5)
    optimizer = torch.optim.AdamW([*student.parameters(), *head.parameters()], lr=1e-3)
    large, small = pixels(size)

    def step() -> None:
        update_momentum(student, teacher, m=0.996)
        update_momentum(head, teacher_head, m=0.996)
        with torch.no_grad():
            targets = [teacher_head(teacher(view)) for view in large]
        predictions = [head(student(view)) for view in (*large, *small)]
        criterion(targets, predictions, epoch=1).backward()
        torch.nn.utils.clip_grad_norm_([*student.parameters(), *head.parameters()], 3.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def lightly_ibot(size: Size) -> Step:
    from lightly.loss import DINOLoss, IBOTPatchLoss
    from lightly.models.modules import DINOProjectionHead, MaskedVisionTransformerTIMM
    from lightly.models.utils import random_block_mask, update_momentum

    student = MaskedVisionTransformerTIMM(timm_network(size, dynamic_img_size=True))
    teacher = copy.deepcopy(student).requires_grad_(False)
    head = DINOProjectionHead(size.dim, 2048, 256, size.prototypes)
    teacher_head = DINOProjectionHead(size.dim, 2048, 256, size.prototypes).requires_grad_(False)
    image_loss, patch_loss = DINOLoss(output_dim=size.prototypes), IBOTPatchLoss(output_dim=size.prototypes)
    optimizer = torch.optim.AdamW([*student.parameters(), *head.parameters()], lr=1e-3)
    large, small = pixels(size)
    side = size.image // size.patch

    def step() -> None:
        update_momentum(student, teacher, m=0.996)
        update_momentum(head, teacher_head, m=0.996)
        views, crops = torch.cat(large), torch.cat(small)
        mask = views.new_zeros((len(views), side, side), dtype=torch.bool)
        mask[:] = random_block_mask(size=(len(views), side, side), min_num_masks_per_block=1)
        chosen = torch.cat([mask.new_zeros(len(views), 1), mask.flatten(1)], dim=1)
        with torch.no_grad():
            seen = teacher.encode(views)
            targets, patch_targets = teacher_head(seen[:, 0]), teacher_head(seen[chosen])
        tokens, local = student.encode(views, mask=chosen), student.encode(crops)
        predictions = [*head(tokens[:, 0]).chunk(2), *head(local[:, 0]).chunk(len(small))]
        loss = image_loss(list(targets.chunk(2)), predictions)
        loss = loss + patch_loss(patch_targets, head(tokens[chosen]), mask)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*student.parameters(), *head.parameters()], 3.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def lightly_mae(size: Size) -> Step:
    from lightly.models import utils
    from lightly.models.modules import MAEDecoderTIMM, MaskedVisionTransformerTIMM

    encoder = MaskedVisionTransformerTIMM(timm_network(size))
    width, blocks, heads = size.decoder
    decoder = MAEDecoderTIMM(
        num_patches=(size.image // size.patch) ** 2,
        patch_size=size.patch,
        embed_dim=size.dim,
        decoder_embed_dim=width,
        decoder_depth=blocks,
        decoder_num_heads=heads,
    )
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    (images, _), _ = pixels(size)

    def step() -> None:
        length = encoder.sequence_length
        keep, hidden = utils.random_token_mask(size=(len(images), length), mask_ratio=0.75)
        visible = decoder.embed(encoder.encode(images=images, idx_keep=keep))
        canvas = utils.set_at_index(utils.repeat_token(decoder.mask_token, (len(images), length)), keep, visible)
        predicted = decoder.predict(utils.get_at_index(decoder.decode(canvas), hidden))
        target = utils.get_at_index(utils.patchify(images, size.patch), hidden - 1)
        nn.functional.mse_loss(predicted, utils.normalize_mean_var(target)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def transformers_mae(size: Size) -> Step:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    width, blocks, heads = size.decoder
    config = ViTMAEConfig(
        hidden_size=size.dim,
        num_hidden_layers=size.depth,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.dim,
        image_size=size.image,
        patch_size=size.patch,
        decoder_hidden_size=width,
        decoder_num_hidden_layers=blocks,
        decoder_num_attention_heads=heads,
        decoder_intermediate_size=4 * width,
        norm_pix_loss=True,
    )
    model = ViTMAEForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    (images, _), _ = pixels(size)

    def step() -> None:
        model(images).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def timm_mae(size: Size) -> Step:
    """The passes of MAE alone: blocks of the encoder on a quarter of the patches, of the decoder on all."""
    from timm.models.vision_transformer import Block

    network = timm_network(size)
    width, blocks, heads = size.decoder
    decoder = nn.Sequential(*[Block(width, heads, qkv_bias=True) for _ in range(blocks)])
    patches = (size.image // size.patch) ** 2
    visible = torch.randn(size.images, patches // 4 + 1, size.dim)
    whole = torch.randn(size.images, patches + 1, width)

    def step() -> None:
        (network.blocks(visible).sum() + decoder(whole).sum()).backward()  # type: ignore[operator]
        network.zero_grad()
        decoder.zero_grad()

    return step


def our_views() -> Step:
    from asterism.images.decode import decode
    from lab.benchmarks.views import cut_views, encoded_images
    from lab.benchmarks.views import our_views as make

    views, files = make(), encoded_images(None, 8)
    seeds = iter(range(1_000_000))
    return lambda: cut_views(views, [decode(file, "race") for file in files], next(seeds))


def torchvision_views() -> Step:
    from lab.benchmarks.views import PILBlur, baseline_views, decode_with_pillow, encoded_images

    transforms, files = baseline_views(PILBlur()), encoded_images(None, 8)

    def step() -> None:
        for image in map(decode_with_pillow, files):
            for transform in transforms:
                transform(image)

    return step


def knn(search: str) -> Step:
    from lab.benchmarks.knn import clustered_features, our_predictions, sklearn_predictions

    train, labels, test = clustered_features(50_000, 1_000, 384, 1000)
    if search == "asterism":
        return lambda: our_predictions(train, labels, test, 1000)
    if search == "scikit-learn":
        return lambda: sklearn_predictions(train, labels, test)
    import faiss

    faiss.omp_set_num_threads(1)

    def by_faiss() -> dict[int, Tensor]:
        from asterism.ops.knn import votes

        index = faiss.IndexFlatIP(train.shape[1])
        index.add(train.numpy())
        similarity, found = (torch.from_numpy(part) for part in index.search(test.numpy(), 200))
        neighbours = labels[found]
        return {k: votes(similarity[:, :k], neighbours[:, :k], 1000, 0.07).argmax(1) for k in (10, 20, 100, 200)}

    return by_faiss


# race → side → what makes its step, for a size; the first side is ours
RACES: dict[str, dict[str, Callable[[Size], Step]]] = {
    "dino": {"asterism": lambda s: ours("dino", s), "lightly": lightly_dino, "timm (floor)": timm_multi_crop},
    "ibot": {
        "asterism": lambda s: ours("ibot", s),
        "asterism, masked centre": lambda s: ours("ibot", s, "method.patch_center_of=masked"),
        "lightly": lightly_ibot,
        "timm (floor)": timm_multi_crop,
    },
    "mae": {
        "asterism": lambda s: ours("mae", s),
        "lightly": lightly_mae,
        "transformers": transformers_mae,
        "timm (floor)": timm_mae,
    },
    "views": {"asterism": lambda _: our_views(), "torchvision v2, PIL": lambda _: torchvision_views()},
    "knn": {name: (lambda _, name=name: knn(name)) for name in ("asterism", "scikit-learn", "faiss")},  # type: ignore[misc]
}
STEPS = ("dino", "ibot", "mae")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["miniature"])
    parser.add_argument("--race", nargs="+", choices=RACES, default=list(RACES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="also measure peak memory, in a process for each side")
    parser.add_argument("--json", action="store_true", help="print one JSON object per side instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.json:
        print("| race | side | CPU ms | ours is × as fast | GFLOP | peak MB |\n|---|---|---:|---:|---:|---:|")
    for race in options.race:
        for size in options.size if race in STEPS else ["miniature"]:
            title = f"{race}, {size}" if race in STEPS else race
            found = run(race, SIZES[size], options.rounds)
            for side, (seconds, flops) in found.items():
                ratio = seconds / found["asterism"].seconds
                memory = peak_memory(race, side, size) if options.memory else None
                if options.json:
                    values = {"race": title, "side": side, "seconds": seconds, "flops": flops, "bytes": memory}
                    print(json.dumps(values), flush=True)
                else:
                    peak = "" if memory is None else f"{memory / 1e6:.0f}"
                    work = f"{flops / 1e9:.1f}" if race in STEPS else ""
                    print(f"| {title} | {side} | {1e3 * seconds:.0f} | {ratio:.2f} | {work} | {peak} |", flush=True)


class Measured(NamedTuple):
    """The cost of a step."""

    seconds: float  # of the CPU, in the best round
    flops: int


def run(race: str, size: Size, rounds: int) -> dict[str, Measured]:
    """The cost of every side. Rounds alternate; the first one, in which FLOPs are counted, is not timed."""
    steps = {}
    for side, make in RACES[race].items():
        torch.manual_seed(0)
        random.seed(0)
        steps[side] = make(size)
    flops, best = {}, dict.fromkeys(steps, float("inf"))
    for side, step in steps.items():
        with FlopCounterMode(display=False) as counter:
            step()
        flops[side] = counter.get_total_flops()
    for _ in range(rounds):
        for side, step in steps.items():
            start = time.process_time()
            step()
            best[side] = min(best[side], time.process_time() - start)
    return {side: Measured(best[side], flops[side]) for side in steps}


def peak_memory(race: str, side: str, size: str) -> int:
    """Peak bytes of a process that makes two steps, above what it used with everything imported."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (race, side, size))


def _peak(race: str, side: str, size: str) -> int:
    torch.set_num_threads(1)
    RACES[race][side](_TINY)()  # imports, and what libraries allocate once
    before = _high_water()
    step = RACES[race][side](SIZES[size])
    step()
    step()
    return _high_water() - before


def _high_water() -> int:
    """Peak bytes of this process. `ru_maxrss` would include its parent's, which it inherits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
