"""The time of an evaluation, without starting Python: here, on one core, and in another checkout.

    python -m lab.benchmarks.evaluation_time --model runs/first --data cifar10/ --protocol knn --rounds 4 --one-core
    python -m lab.benchmarks.evaluation_time --model runs/first --data cifar10/ --earlier ../earlier

Every measurement is a process of its own with an empty cache: it imports everything and lists the images, and then
encodes all of them. All forms alternate. `--model` must be readable by both checkouts (`git worktree add
../earlier COMMIT`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parents[2]
_MEASURE = """
import sys, time
import timm
import asterism.api
from asterism.data import open_source
model, data, protocol = sys.argv[1:]
for split in ("train", "test"):
    open_source(data, split)
before = time.perf_counter()
asterism.api.evaluate(model, data, protocols=[protocol])
print(asterism.__file__, time.perf_counter() - before, sep=chr(10))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="a run folder")
    parser.add_argument("--data", required=True, type=Path, help="labelled images with train and test splits")
    parser.add_argument("--protocol", default="knn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--one-core", action="store_true", help="also on a single core")
    parser.add_argument("--earlier", type=Path, help="another checkout of this repository")
    options = parser.parse_args()
    forms = {"here": (_HERE, None)}
    if options.one_core:
        forms["one core"] = (_HERE, 0)
    if options.earlier:
        forms["earlier"] = (options.earlier.resolve(), None)
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(options.rounds):
        for name, (checkout, core) in forms.items():
            seconds[name].append(measured(checkout, core, options))
            print(f"{name:10} {seconds[name][-1]:6.1f} s", flush=True)
    reference = statistics.median(seconds["here"])
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:10} median {median:6.1f} s, {median / reference:.2f} × here")


def measured(checkout: Path, core: int | None, options: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = shutil.copytree(options.model, Path(folder) / "run")
        own = {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1", "XDG_CACHE_HOME": folder}
        found = subprocess.run(
            [sys.executable, "-c", _MEASURE, str(run), str(options.data.resolve()), options.protocol],
            env=os.environ | own,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        place, time_taken = found.stdout.splitlines()[-2:]
        assert Path(place).is_relative_to(checkout), f"{place} was measured instead of {checkout}"
        return float(time_taken)


if __name__ == "__main__":
    main()
