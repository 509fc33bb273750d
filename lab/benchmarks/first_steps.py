"""Whether 200 steps of each method improve features: k-NN on held-out training images and rank, before and after.

    python -m lab.benchmarks.first_steps --data cifar10/ --out runs/first-steps
    python -m lab.benchmarks.first_steps --data cifar10/ --out first --recipe dino-cifar10 -- backbone.init=timm

Every recipe runs with its own settings, except length, warm-up and teacher momentum: the encoder is the teacher, which
with a momentum of 0.99 would still be close to the untrained network after 200 steps. Finished runs in `--out` are not
repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import asterism
from asterism.train.recipe import load_recipe
from asterism.train.run import Run

METHODS = ("dino", "ibot", "mae", "massl", "sove", "sop", "flsl", "cribo", "stellar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=[f"{method}-cifar10" for method in METHODS])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("overrides", nargs="*", help="settings for every run, after --")
    options = parser.parse_args()
    rows = ["| recipe | k-NN untrained | k-NN | raw pixels | rank at the start | rank | warnings |", "|---" * 7 + "|"]
    for name in options.recipe:
        rows.append(row(name, train(name, options)))
        print(rows[-1], flush=True)
    print("\n".join(rows))


def train(name: str, options: argparse.Namespace) -> Run:
    out = options.out / name
    if (out / "checkpoints" / f"step-{options.steps:08d}").is_dir():
        return Run(out)
    short = [f"trainer.steps={options.steps}", "optim.warmup_epochs=0.03", "monitor.knn.every_epochs=100"]
    values = load_recipe(name, [f"data.path={options.data}"]).method
    if isinstance(getattr(values, "momentum", None), float):
        short.append(f"method.momentum={1 - 10 / options.steps}")
    overrides = [*short, *options.overrides]
    return asterism.pretrain(recipe=name, data=options.data, out=out, overwrite=True, overrides=overrides)


def row(name: str, run: Run) -> str:
    records = run.metrics()
    knn = [record["knn"] for record in records if "knn" in record]
    pixels = next(record["knn_pixels"] for record in records if "knn_pixels" in record)
    ranks = [record["effective_rank"] for record in records if "effective_rank" in record]
    warnings = sum("warning" in record for record in records)
    numbers = f"{knn[0]:.1f} | {knn[-1]:.1f} | {pixels:.1f} | {ranks[0]:.0f} | {ranks[-1]:.0f} | {warnings}"
    return f"| {name} | {numbers} |"


if __name__ == "__main__":
    main()
