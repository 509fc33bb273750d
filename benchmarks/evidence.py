"""The mechanisms of each method, measured against the true masks and classes of scenes.

    python benchmarks/evidence.py studies/stellar-tokens-scenes/runs/r8-0 studies/flsl-crops-scenes/runs/nested-0

STELLAR: concepts of transformed images, concept purity. CrIBo: share of accepted pairs of the same class. FLSL, and
every other method with patches: modes against true masks. DINO, iBOT, SOP, MaSSL: use and purity of prototypes.
Measures that need only an encoder are also protocols:
`asterism evaluate RUN --protocols equivariance,concept-purity,mode-purity`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from asterism import evaluate
from asterism.comparing.mechanisms.cribo_matches import measure_matches
from asterism.comparing.mechanisms.prototypes import measure_use
from asterism.train.run import Run, open_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data", default="scenes:size=64,count=600", help="images with masks")
    parser.add_argument("--images", type=int, default=500, help="for measures without a training split")
    options = parser.parse_args()
    for path in options.runs:
        run = open_run(path)
        for name, value in measured(run, options.data, options.images).items():
            print(f"{path}\t{name}\t{value:.2f}")


def measured(run: Run, data: str, images: int) -> dict[str, float]:
    method = run.config["method"]["name"]
    protocols = ["mode-purity"]
    settings = ["mode-purity.workers=0"]
    if method == "stellar":
        protocols += ["equivariance", "concept-purity"]
        settings += [f"equivariance.images={images}", "equivariance.workers=0", "concept-purity.workers=0"]
    results = evaluate(run, data, protocols, overrides=settings)
    found = {f"{name}.{key}": value for name, result in results.items() for key, value in result.values.items()}
    if method == "cribo":
        matches = measure_matches(run, data)
        found |= {f"matches.{name}": value for name, value in matches.shares().items()}
        found |= {f"matches of things.{name}": value for name, value in matches.shares(without=0).items()}
    if method in ("dino", "ibot", "sop"):
        found |= {f"prototypes.{name}": value for name, value in measure_use(run, data, images).values().items()}
    return found


if __name__ == "__main__":
    main()
