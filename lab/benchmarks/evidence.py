"""What the papers claim, as differences between two measurements: mean over seeds, interval, verdict.

    asterism compare evidence-stellar --out studies/evidence-stellar
    asterism compare evidence-flsl --out studies/evidence-flsl
    asterism compare evidence-cribo --out studies/evidence-cribo
    asterism compare evidence-sop --out studies/evidence-sop --data cifar10/
    python -m lab.benchmarks.evidence studies --classes cifar10/

Prints the table of docs/evidence.md. A claim says that one measurement is larger than another. Both are taken for every
seed, and the interval is that of their difference: 95 % by Student's t. A claim is shown if the interval is above zero,
contradicted if it is below, and else not shown. Studies that are missing are left out. What has to be measured from
the runs (CrIBo's objects and matches, prototypes) is kept in the study's folder `mechanisms`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from asterism.extras.studies.interval import interval
from asterism.train.run import Run, open_run
from lab.mechanisms.cribo_matches import measure_matches
from lab.mechanisms.cribo_objects import measure_objects
from lab.mechanisms.prototypes import measure_use

BANKS = (32, 128, 512)  # images
_SCENES = "scenes:size=64,count=1100"
_BACKGROUND = 0  # the class of pixels of scenes that show no thing
_BATCH = 32

Values = dict[str, float]
Measure = Callable[[int], float]  # of a seed


@dataclass(frozen=True)
class Claim:
    """`larger` should be larger than `smaller`; both with what they are."""

    text: str
    larger: tuple[str, Measure]
    smaller: tuple[str, Measure]


class Study:
    """The results of a study, and what is measured from its runs."""

    def __init__(self, folder: Path, measure: Callable[[Run], Values]) -> None:
        self._folder, self._measure = folder, measure
        with (folder / "results.csv").open(encoding="utf-8") as file:
            self._rows = {(row["run"], int(row["seed"])): row for row in csv.DictReader(file)}

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self._rows})

    def column(self, run: str, name: str) -> tuple[str, Measure]:
        return f"{run}: {name}", lambda seed: float(self._rows[run, seed][name])

    def mechanism(self, run: str, name: str) -> tuple[str, Measure]:
        return f"{run}: {name}", lambda seed: self._measured(run, seed)[name]

    def margin(self, run: str, larger: str, smaller: str) -> tuple[str, Measure]:
        """How much larger one column is than another."""
        _, first = self.column(run, larger)
        _, second = self.column(run, smaller)
        return f"{run}: {larger}, minus {smaller}", lambda seed: first(seed) - second(seed)

    def spread(self, runs: tuple[str, ...], name: str) -> tuple[str, Measure]:
        """The largest minus the smallest value of several runs."""

        def measure(seed: int) -> float:
            values = [float(self._rows[run, seed][name]) for run in runs]
            return max(values) - min(values)

        return f"spread of {', '.join(runs)}: {name}", measure

    def _measured(self, run: str, seed: int) -> Values:
        path = self._folder / "mechanisms" / f"{run}-{seed}.json"
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(self._measure(open_run(self._folder / "runs" / f"{run}-{seed}")), indent=2))
        found: Values = json.loads(path.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", type=Path, help="folder with evidence-stellar, evidence-sop, …")
    parser.add_argument("--classes", default="cifar10/", help="labelled images to measure SOP's prototypes on")
    parser.add_argument("--images", type=int, default=2000, help="number of them")
    options = parser.parse_args()
    kinds: dict[str, tuple[Callable[[Study], Iterator[Claim]], Callable[[Run], Values]]] = {
        "STELLAR": (stellar, lambda run: {}),
        "SOP": (sop, partial(prototypes, data=options.classes, images=options.images)),
        "FLSL": (flsl, lambda run: {}),
        "CrIBo": (cribo, objects),
    }
    print("| | claim | larger | smaller | difference | verdict |\n|---|---|---|---|---|---|")
    number = 0
    for name, (claims, measure) in kinds.items():
        folder = options.studies / f"evidence-{name.lower()}"
        if not (folder / "results.csv").is_file():
            continue
        study = Study(folder, measure)
        for claim in claims(study):
            number += 1
            print(f"| {number} | {name}: {claim.text} | {judged(claim, study.seeds)} |", flush=True)


def judged(claim: Claim, seeds: list[int]) -> str:
    """Both measurements, their difference and the verdict, as cells of the table."""
    try:
        values = [[measure(seed) for seed in seeds] for _, measure in (claim.larger, claim.smaller)]
    except (KeyError, ValueError):  # a run of the study has not ended
        return "– | – | – | not measured"
    difference = interval([large - small for large, small in zip(*values, strict=True)])
    assert difference is not None
    assert difference.half is not None
    verdict = "not shown"
    if difference.mean > difference.half:
        verdict = "**shown**"
    if difference.mean < -difference.half:
        verdict = "*contradicted*"
    sides = [f"{name} {interval(each)}" for (name, _), each in zip((claim.larger, claim.smaller), values, strict=True)]
    return f"{sides[0]} | {sides[1]} | {difference} | {verdict}"


# --- claims ---------------------------------------------------------------------------------------------------------


def stellar(study: Study) -> Iterator[Claim]:
    column = study.column
    for move in ("shift", "mirror", "zoom"):
        yield Claim(
            f"concepts stay when the image is changed ({move}): more alike than those of another image",
            column("full", f"concepts {move}, what"),
            column("full", "concepts other image, what"),
        )
        yield Claim(
            f"maps move with the image ({move}): they agree with the moved map, not with the old one",
            column("full", f"concepts {move}, where"),
            column("full", f"concepts {move}, where if still"),
        )
    for kind, other in (("what", "other image, what"), ("where", "shift, where if still")):
        larger, smaller = f"concepts shift, {kind}", f"concepts {other}"
        yield Claim(
            f"… and both are learned (shift, {kind}): more so than in the untrained network",
            study.margin("full", larger, smaller),
            study.margin("untrained", larger, smaller),
        )
    yield Claim(
        "concepts cover things: purity gain over the untrained network",
        column("full", "concepts purity gain"),
        column("untrained", "concepts purity gain"),
    )
    yield Claim("more concepts reconstruct better", column("r24", "concepts PSNR"), column("full", "concepts PSNR"))
    yield Claim("… and fewer worse", column("full", "concepts PSNR"), column("r4", "concepts PSNR"))
    yield Claim(
        "concepts learn what is in the image", column("full", "concepts k-NN"), column("untrained", "concepts k-NN")
    )
    yield Claim(
        "without alignment there is no semantics",
        column("full", "concepts k-NN"),
        column("no-alignment", "concepts k-NN"),
    )
    yield Claim(
        "without clustering there is less", column("full", "concepts k-NN"), column("no-clustering", "concepts k-NN")
    )
    yield Claim(
        "a start from MAE helps, at equal time", column("from-mae", "concepts k-NN"), column("full", "concepts k-NN")
    )
    yield Claim(
        "MAE is the better start than a teacher's warm-up",
        column("from-mae", "concepts k-NN"),
        column("teacher", "concepts k-NN"),
    )


def sop(study: Study) -> Iterator[Claim]:
    column, mechanism = study.column, study.mechanism
    yield Claim("anchors drawn anew beat fixed ones", column("sop", "k-NN"), column("fixed", "k-NN"))
    yield Claim(
        "the number of prototypes matters less than for learned ones",
        study.spread(("ibot-32", "ibot", "ibot-4096"), "k-NN"),
        study.spread(("sop-32", "sop", "sop-1024"), "k-NN"),
    )
    yield Claim(
        "the patch loss lifts dense scores", column("sop", "scenes mIoU"), column("images-alone", "scenes mIoU")
    )
    yield Claim("self-organized prototypes beat learned ones", column("sop", "k-NN"), column("ibot", "k-NN"))
    yield Claim("a larger share of them is in use", mechanism("sop-32", "used"), mechanism("ibot-32", "used"))
    yield Claim(
        "and they are purer, above what one prototype has",
        mechanism("sop-32", "purity_gain"),
        mechanism("ibot-32", "purity_gain"),
    )


def flsl(study: Study) -> Iterator[Claim]:
    column = study.column
    yield Claim(
        "modes inside a view group patches of one thing", column("nested", "same class"), column("nested", "chance")
    )
    yield Claim("… more than before training", column("nested", "same class"), column("untrained", "same class"))
    yield Claim(
        "the intra-view term (υ > 0) improves modes", column("nested", "same class"), column("no-intra", "same class")
    )
    yield Claim("… and dense scores", column("nested", "mIoU"), column("no-intra", "mIoU"))
    yield Claim("nested crops beat symmetric ones", column("nested", "mIoU"), column("symmetric", "mIoU"))


def cribo(study: Study) -> Iterator[Claim]:
    column, mechanism = study.column, study.mechanism
    largest = f"bank of {max(BANKS)}"
    yield Claim(
        "pairs that close the cycle show the same class more often than all nearest pairs",
        mechanism("full", f"{largest}, cycle"),
        mechanism("full", f"{largest}, all"),
    )
    yield Claim(
        "nearest pairs do so more often than random ones",
        mechanism("full", f"{largest}, all"),
        mechanism("full", f"{largest}, random"),
    )
    yield Claim(
        "a larger bank has better matches",
        mechanism("full", f"{largest}, all"),
        mechanism("full", f"bank of {min(BANKS)}, all"),
    )
    yield Claim(
        "joint clustering finds the same thing in both views more often than separate clustering",
        mechanism("full", "jointly by transport, same"),
        mechanism("full", "each view alone, same"),
    )
    yield Claim(
        "transport with positions makes purer objects than k-means",
        mechanism("full", "jointly by transport, purity"),
        mechanism("full", "jointly by k-means, purity"),
    )
    yield Claim("object losses lift dense scores", column("no-neighbours", "mIoU"), column("image", "mIoU"))
    yield Claim("neighbours in other images lift them further", column("full", "mIoU"), column("no-neighbours", "mIoU"))


# --- what is measured from runs -------------------------------------------------------------------------------------


def prototypes(run: Run, data: str, images: int) -> Values:
    values = measure_use(run, data, images).values()
    return values | {"purity_gain": values["purity"] - values["purity_of_one"]}


def objects(run: Run) -> Values:
    """Matches of things, for every size of the bank; and objects."""
    found: Values = {}
    for bank in BANKS:
        matches = measure_matches(run, _SCENES, batches=2 * max(BANKS) // _BATCH, batch_size=_BATCH, bank_images=bank)
        found |= {f"bank of {bank}, {name}": value for name, value in matches.shares(without=_BACKGROUND).items()}
    return found | measure_objects(run, _SCENES, batch_size=_BATCH)


if __name__ == "__main__":
    main()
