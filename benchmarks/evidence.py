"""The mechanisms of each method, measured against the true masks and classes: mean over seeds and interval.

    asterism compare evidence-cribo --out studies/evidence-cribo
    python benchmarks/evidence.py studies/evidence-cribo/runs/full-{0,1,2}
    python benchmarks/evidence.py studies/evidence-sop/runs/{sop,ibot}-{0,1,2} --data cifar10/ --images 2000

CrIBo: share of accepted pairs of the same class, for banks of several sizes; objects of joint and of separate
clustering. DINO, iBOT, SOP, MaSSL: use and purity of prototypes. Folders that differ only in the number at their end
are seeds of one row. Measures that need only an encoder are protocols:
`asterism evaluate RUN --protocols equivariance,concept-purity,mode-purity`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from asterism.comparing.interval import interval
from asterism.comparing.mechanisms.cribo_matches import measure_matches
from asterism.comparing.mechanisms.cribo_objects import measure_objects
from asterism.comparing.mechanisms.prototypes import measure_use
from asterism.errors import UserError
from asterism.train.run import Run, open_run

_BANKS = (32, 128, 512)  # images
_BACKGROUND = 0  # the class of scenes' pixels that show no thing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument(
        "--data", default="scenes:size=64,count=1100", help="images with masks or, for prototypes, classes"
    )
    parser.add_argument("--images", type=int, default=500, help="for prototypes")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    for path in options.runs:
        row = re.sub(r"-\d+$", "", path.name)
        for name, value in measured(open_run(path), options.data, options.images).items():
            found.setdefault((row, name), []).append(value)
    print("| run | measure | value | seeds |\n|---|---|---|---|")
    for (row, name), values in found.items():
        print(f"| {row} | {name} | {interval(values)} | {len(values)} |")


def measured(run: Run, data: str, images: int) -> dict[str, float]:
    method = run.config["method"]["name"]
    if method in ("dino", "ibot", "sop"):
        return {f"prototypes, {name}": value for name, value in measure_use(run, data, images).values().items()}
    if method != "cribo":
        raise UserError(f"{run.path} is a run of {method}; only cribo, dino, ibot and sop have mechanisms of their own")
    found: dict[str, float] = {}
    for bank in _BANKS:
        matches = measure_matches(run, data, batches=2 * max(_BANKS) // 32, bank_images=bank)
        found |= {f"bank of {bank}, things, {name}": value for name, value in matches.shares(_BACKGROUND).items()}
        found |= {f"bank of {bank}, all, {name}": value for name, value in matches.shares().items()}
    return found | {f"objects {name}": value for name, value in measure_objects(run, data).items()}


if __name__ == "__main__":
    main()
