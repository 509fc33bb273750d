"""Does pretraining help? The same network from pretrained weights and from scratch, at equal steps, for every task.

    asterism pretrain demo --out runs/scenes
    asterism pretrain demo --data tinyimagenet20/train --out runs/photos
    python -m lab.benchmarks.finetuning_evidence --scenes runs/scenes --photos runs/photos --data DATA --out evidence

DATA contains camvid/, coco128/ and tinyimagenet20/; without it only the tasks on scenes are measured. Every score is
that of unseen test images with the weights that held-out training images chose. Finished runs are not repeated, so the
command continues after an interruption, and several may fill one folder, each with its own `--task`. At the end it
prints the scores with 95 % intervals (of the difference: paired by seed) and the learning curves on held-out images.

coco128 has 86 training images for 80 classes, too few to name objects; its task here is to find them, with all classes
merged into one.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

import asterism
from asterism.extras.studies.interval import interval
from asterism.train.metrics import read_metrics

STARTS = {"pretrained": "pretrained", "scratch": "fresh"}  # by their name in the table


@dataclass(frozen=True)
class Task:
    """A recipe, what it trains and is tested on, and the score."""

    recipe: str
    score: str
    train: str | None = None  # a folder in DATA; None: the recipe's scenes
    test: str | None = None  # None: the test part of what it trains on
    changes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return "scenes" if self.train is None else "photos"


TASKS = {
    "classify-scenes": Task("classify-scenes", "top1", test="scenes:size=64,count=400"),
    "classify-photos": Task("classify-tinyimagenet", "top1", train="tinyimagenet20"),
    "segment-scenes": Task("segment-scenes", "miou", test="scenes:size=64,count=200"),
    "segment-camvid": Task("segment-camvid", "miou", train="camvid"),
    "detect-scenes": Task("detect-scenes", "AP", test="scenes:size=64,count=100"),
    "detect-coco128": Task("detect-coco128", "AP50", train="coco128", changes=("task.empty_classes=refuse",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=Path, help="a run pretrained on scenes")
    parser.add_argument("--photos", type=Path, help="a run pretrained on photographs")
    parser.add_argument("--data", type=Path, help="the folder with camvid/, coco128/ and tinyimagenet20/")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("evidence"))
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="section.key=value")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources = {"scenes": options.scenes, "photos": options.photos}
    names = [name for name in options.task if sources[TASKS[name].source] and (options.data or not TASKS[name].train)]
    scores: dict[str, dict[str, list[float]]] = {}
    for name in names:
        scores[name] = {start: [] for start in STARTS}
        for seed in options.seeds:
            for start in STARTS:
                folder = options.out / f"{name}-{start}-{seed}"
                score = measured(TASKS[name], start, seed, sources[TASKS[name].source], folder, options)
                scores[name][start].append(score)
                print(f"{folder.name}: {score:.2f}", flush=True)
    print("\n| task | score | pretrained | from scratch | difference |\n|---|---|---|---|---|")
    for name, found in scores.items():
        print(f"| `{TASKS[name].recipe}` | {TASKS[name].score} | {row(found)} |")
    for name in names:
        print_curves(name, options)


def measured(task: Task, start: str, seed: int, source: Path, folder: Path, options: argparse.Namespace) -> float:
    """The test score in percent; read from the folder if it was measured before."""
    train = None if task.train is None else options.data / task.train
    if task.train == "coco128":
        train = merged_classes(train, options.out / "coco128-merged")
    kept = folder / "score.json"
    if not kept.is_file():
        fixed = [f"source.weights={STARTS[start]}", f"trainer.seed={seed}", "trainer.devices=1", "data.workers=0"]
        changes = [*fixed, "trainer.accelerator=cpu", *task.changes, *options.changes]
        asterism.finetune(source, data=train, recipe=task.recipe, out=folder, overwrite=True, overrides=changes)
        (result,) = asterism.evaluate(folder, task.test or train, device="cpu").values()
        kept.write_text(json.dumps(dict(result.values)))
    return float(json.loads(kept.read_text())[task.score])


def merged_classes(coco: Path, folder: Path) -> Path:
    """A copy of the annotations with one class; everything else is linked."""
    if not folder.is_dir():
        (folder / "annotations").mkdir(parents=True)
        for other in coco.iterdir():
            if other.name != "annotations":
                (folder / other.name).symlink_to(other.resolve())
        for file in sorted((coco / "annotations").glob("*.json")):
            content = json.loads(file.read_text())
            content["categories"] = [{"id": 1, "name": "object"}]
            for entry in content["annotations"]:
                entry["category_id"] = 1
            (folder / "annotations" / file.name).write_text(json.dumps(content))
    return folder


def row(found: dict[str, list[float]]) -> str:
    """Both starts with their seeds, and the difference paired by seed."""
    cells = [f"{interval(values)} {', '.join(f'{value:.1f}' for value in values)}" for values in found.values()]
    differences = [ours - other for ours, other in zip(*found.values(), strict=True)]
    return " | ".join([*cells, str(interval(differences))])


def print_curves(name: str, options: argparse.Namespace) -> None:
    """The score on held-out training images by step, averaged over seeds."""
    for start in STARTS:
        curves = [curve(options.out / f"{name}-{start}-{seed}", TASKS[name].score) for seed in options.seeds]
        if curves[0]:
            means = {step: statistics.fmean(each[step] for each in curves if step in each) for step in curves[0]}
            points = ", ".join(f"{step}: {value:.1f}" for step, value in means.items())
            print(f"{name}, {start}, held-out {TASKS[name].score} by step: {points}")


def curve(folder: Path, score: str) -> dict[int, float]:
    held_out = f"held_out/{score}"
    return {record["step"]: record[held_out] for record in read_metrics(folder) if held_out in record}


if __name__ == "__main__":
    main()
