"""A pretrained start against the same network from scratch, at equal steps, on scenes and CamVid with several seeds.

    asterism pretrain mae-scenes --out runs/mae-scenes
    python benchmarks/segmentation_evidence.py runs/mae-scenes --camvid camvid/ --out evidence/

Scores are those of the test images with the weights that held-out training images chose. Finished runs are kept,
so the command can be repeated after an interruption; the table, its intervals and the learning curves on held-out
training images, averaged over seeds, are printed at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import asterism
from asterism.errors import UserError

_STARTS = ("pretrained", "fresh")
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # quantiles of Student's t for 95 % intervals, by number of seeds


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("source", help="a pretrained run")
    words.add_argument("--camvid", help="the folder of CamVid; without it only scenes")
    words.add_argument("--out", type=Path, default=Path("evidence"))
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--test", default="scenes:size=64,count=200", help="the scenes to test on")
    words.add_argument("overrides", nargs="*", metavar="section.key=value")
    given = words.parse_intermixed_args()
    sets = {"scenes": (None, given.test), **({"camvid": (given.camvid, given.camvid)} if given.camvid else {})}
    found: dict[tuple[str, str], list[float]] = {}
    for seed in given.seeds:
        for name, (train, test) in sets.items():
            for start in _STARTS:
                folder = given.out / f"{name}-{start}-{seed}"
                changes = [f"source.weights={start}", f"trainer.seed={seed}", *given.overrides]
                score = _score(given.source, f"segment-{name}", train, test, folder, changes)
                found.setdefault((name, start), []).append(score)
                print(f"{name}, {start} weights, seed {seed}: mIoU {score:.2f}", flush=True)
    for (name, start), scores in found.items():
        print(f"| {name} | {start} | {_interval(scores)} | {', '.join(f'{each:.1f}' for each in scores)} |")
    for name, start in found:
        curves = [_curve(given.out / f"{name}-{start}-{seed}") for seed in given.seeds]
        points = {step: statistics.fmean(curve[step] for curve in curves) for step in curves[0]}
        line = ", ".join(f"{step}: {value:.1f}" for step, value in points.items())
        print(f"{name}, {start}, held-out mIoU by step: {line}")


def _score(source: str, recipe: str, train: str | None, test: str, folder: Path, changes: list[str]) -> float:
    """Test mIoU in percent; read from the folder if it was measured before."""
    result = folder / "eval" / "segment.json"
    if not result.is_file():
        try:
            asterism.finetune(source, data=train, out=folder, recipe=recipe, overwrite=True, overrides=changes)
        except UserError as error:
            raise SystemExit(f"{folder}: {error}") from None
        asterism.evaluate(folder, data=test)
    return float(json.loads(result.read_text(encoding="utf-8"))["values"]["miou"])


def _curve(folder: Path) -> dict[int, float]:
    """The mIoU on held-out training images, by step."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {record["step"]: record["held_out/miou"] for record in records if "held_out/miou" in record}


def _interval(scores: list[float]) -> str:
    mean = statistics.fmean(scores)
    if len(scores) not in _T:
        return f"{mean:.1f}"
    return f"{mean:.1f} ± {_T[len(scores)] * statistics.stdev(scores) / len(scores) ** 0.5:.1f}"


if __name__ == "__main__":
    main()
