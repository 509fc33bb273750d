"""Whether a pretrained start helps detection in miniature: pretrained and fresh weights at equal steps, several seeds.

    OMP_NUM_THREADS=1 python benchmarks/detection_evidence.py RUN --recipe detect-scenes --seeds 3 --out FOLDER

RUN is a pretrained run. Every result is a run of `asterism finetune` followed by `asterism evaluate` on test images; a
JSON file with all values is written to FOLDER, and runs that are there already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

import asterism

_T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # Student's t for a 95 % interval of so many values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--data", default=None)
    parser.add_argument("--test", default=None, help="data to test on, if not that of the recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="section.key=value")
    options = parser.parse_args()
    torch.set_num_threads(1)
    values: dict[str, list[dict[str, float]]] = {"pretrained": [], "fresh": []}
    for seed in range(options.seeds):
        for weights in values:
            values[weights].append(_measured(options, weights, seed))
            _say(values)
    (options.out / "values.json").write_text(json.dumps(values, indent=2))


def _measured(options: argparse.Namespace, weights: str, seed: int) -> dict[str, float]:
    folder = options.out / f"{weights}-{seed}"
    if not (folder / "model.safetensors").exists():
        fixed = [f"source.weights={weights}", f"trainer.seed={seed}", "validation=null", "trainer.devices=1"]
        asterism.finetune(
            options.run,
            data=options.data,
            recipe=options.recipe,
            out=folder,
            overwrite=True,
            overrides=[*fixed, "trainer.accelerator=cpu", "data.workers=0", *options.changes],
        )
    (result,) = asterism.evaluate(folder, options.test or options.data, device="cpu").values()
    return dict(result.values)


def _say(values: dict[str, list[dict[str, float]]]) -> None:
    for weights, found in values.items():
        for name in found[0] if found else ():
            scores = [each.get(name, 0.0) for each in found]
            spread = 0.0
            if len(scores) > 1:
                spread = _T95.get(len(scores), 2.78) * statistics.stdev(scores) / len(scores) ** 0.5
            listed = ", ".join(f"{score:.2f}" for score in scores)
            print(f"{weights:<11}{name:<16}{statistics.mean(scores):6.2f} ± {spread:5.2f}   ({listed})", flush=True)


if __name__ == "__main__":
    main()
