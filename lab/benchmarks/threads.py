"""How training uses the cores of a CPU: images per second for processes × threads × data workers, per recipe.

    python -m lab.benchmarks.threads --recipe dino-cifar10 mae-cifar10 --data cifar10/ --steps 60 --rounds 3
    python -m lab.benchmarks.threads --recipe demo --setting 0 3
    git worktree add ../earlier COMMIT
    python -m lab.benchmarks.threads --recipe ../earlier/asterism/recipes/demo.yaml --setting 3 --earlier ../earlier

Every setting runs in its own processes. The settings run alternately in several rounds, so that a machine whose speed
changes affects all of them. Printed are the median and the best of all windows of five steps, and the ratios of both to
those of the first setting.
The first setting gives each data worker its own core; on two cores, one thread trains. The last uses one core alone:
as many times its rate as there are cores is what any other can reach at most. `--earlier` compares with the code of
another checkout, which uses the cores as it does by default.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parents[2]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Setting:
    """How the cores are used."""

    processes: int | Literal["auto"]
    threads: int | None  # None: chosen by the trainer
    workers: int | Literal["auto"]
    checkout: Path | None = None  # whose code trains; None: this one's

    def __str__(self) -> str:
        if self.checkout is not None:
            return f"earlier code ({self.checkout.name})"
        return f"{self.processes} processes × {self.threads or 'auto'} threads, {self.workers} workers"


SETTINGS = (
    Setting(1, CORES - max(1, CORES // 8), max(1, CORES // 8)),
    Setting(1, CORES, max(1, CORES // 8)),
    Setting(1, CORES, 0),
    Setting(CORES, None, 0),
    Setting(1, 1, 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", default=["demo"])
    parser.add_argument("--data", help="images to train on, instead of the recipe's own")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--setting", type=int, nargs="+", default=range(len(SETTINGS)), help="numbers of those to compare"
    )
    parser.add_argument("--earlier", type=Path, help="a checkout to compare with")
    parser.add_argument("--earlier-recipe", help="what the checkout trains, where its settings had other names")
    parser.add_argument("overrides", nargs="*", help="settings for every run, after --")
    arguments = parser.parse_args()
    for recipe in arguments.recipe:
        common = [*arguments.overrides, *([f"data.path={arguments.data}"] if arguments.data else [])]
        settings = [SETTINGS[number] for number in arguments.setting]
        if arguments.earlier is not None:
            settings.insert(0, Setting("auto", None, "auto", arguments.earlier.resolve()))
        windows: dict[Setting, list[float]] = {setting: [] for setting in settings}
        for _ in range(arguments.rounds):
            for setting, own in windows.items():
                named = recipe if setting.checkout is None else arguments.earlier_recipe or recipe
                own += images_per_second(named, arguments.steps, setting, common)
        first = windows[settings[0]]
        for setting, own in windows.items():
            typical, best = statistics.median(own), max(own)
            print(
                f"{Path(recipe).stem:16} {setting!s:42} images/s: median {typical:4.0f}"
                f" ({typical / statistics.median(first):.2f}×), best {best:4.0f} ({best / max(first):.2f}×)",
                flush=True,
            )


def images_per_second(recipe: str, steps: int, setting: Setting, common: list[str]) -> list[float]:
    """Of the logged windows of a short run, without the first. A given number of threads overrides the trainer's."""
    threads = setting.threads
    keep = f"import torch; torch.set_num_threads({threads}); torch.set_num_threads = lambda count: None; "
    settings = [
        *common,
        f"trainer.steps={steps}",
        "monitor.log_every=5",
        f"trainer.devices={setting.processes}",
        f"data.workers={setting.workers}",
        "trainer.accelerator=cpu",
        "monitor.knn=null",
        "monitor.tensorboard=false",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        call = f"import asterism; asterism.pretrain(recipe={recipe!r}, out={str(run)!r}, overrides={settings!r})"
        script = (keep if threads is not None else "") + call
        # Python would prefer the code in the current folder, also in the processes that training starts.
        code = os.environ | {"PYTHONPATH": str(setting.checkout or HERE), "PYTHONSAFEPATH": "1"}
        subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, env=code)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["images_per_second"] for record in records[1:]]


if __name__ == "__main__":
    main()
