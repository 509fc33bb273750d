"""Whether adapting a pretrained network to other images helps: k-NN before and after, and from scratch, over seeds.

    python -m lab.benchmarks.adapt WEIGHTS --data labelled/ --out FOLDER [--steps 120] [--seeds 3] [--size 64]

WEIGHTS is anything that `asterism pretrain adapt --init` takes. Each seed trains the recipe `adapt` twice for the same
number of steps: from the weights, with a tenth of the usual learning rate, and from fresh weights of the same network,
with the usual rate. The settings that differ from the recipe make it small enough for a CPU. k-NN (k = 20) fits on the
training images and tests on the others; no setting is chosen by its result. Finished runs are not trained again.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

import asterism
from asterism.nn.encoder import Encoder

_SMALL = [
    "method.out_dim=512",
    "method.hidden_dim=512",
    "method.bottleneck_dim=64",
    "method.local_views=0",
    "method.freeze_last_layer=0",
    "method.momentum=0.97",
    "optim.lr_scaling=none",
    "monitor.knn=null",
    "monitor.tensorboard=false",
    "data.workers=0",
    "trainer.batch_size=32",
    "trainer.devices=1",
    "trainer.accelerator=cpu",
]
_USUAL_RATE = 5e-4


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    print(f"before  {score(asterism.load(options.weights), options.data):.1f}", flush=True)
    found: dict[str, list[float]] = {"adapted": [], "scratch": []}
    for seed in range(options.seeds):
        fresh = options.out / f"fresh-{seed}.safetensors"
        untrained(options.weights, seed).save(fresh)
        for name, start, rate in (("adapted", options.weights, _USUAL_RATE / 10), ("scratch", fresh, _USUAL_RATE)):
            encoder = trained(options, f"{name}-{seed}", start, rate, seed)
            found[name].append(score(encoder, options.data))
            print(f"{name} seed {seed}  {found[name][-1]:.1f}", flush=True)
    for name, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}  {statistics.mean(values):.1f} ± {spread:.1f}")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("--data", required=True, help="labelled images; training does not use the labels")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=64, help="pixels per side of a view")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def untrained(weights: str, seed: int) -> Encoder:
    encoder: Encoder = asterism.load(weights)
    torch.manual_seed(seed)
    encoder.backbone.draw_weights("width")
    return encoder


def trained(options: argparse.Namespace, name: str, start: str | Path, rate: float, seed: int) -> Encoder:
    folder = options.out / name
    if not (folder / "encoder.safetensors").is_file():
        changes = [f"backbone.image_size={options.size}", f"optim.lr={rate}", f"trainer.steps={options.steps}"]
        overrides = [*_SMALL, *changes, f"trainer.seed={seed}"]
        asterism.pretrain(recipe="adapt", data=options.data, out=folder, init=start, overrides=overrides)
    encoder: Encoder = asterism.load(folder)
    return encoder


def score(encoder: Encoder, data: str) -> float:
    """Top-1 of k-NN, in percent."""
    return asterism.evaluate(encoder, data, "knn", device="cpu", knn={"k": [20]})["knn"].values["top1_k20"]


if __name__ == "__main__":
    main()
