"""Train several settings for the same time, evaluate them, and print one table: the comparisons of the documentation.

    python benchmarks/study.py benchmarks/studies/prototypes-cifar10.yaml --out studies/prototypes --data cifar10/

A study is a YAML file:

    minutes: 4                  # of one core for each run, without the evaluation; or `steps`, the same for all
    seeds: [0, 1]
    settings: [trainer.batch_size=64]               # changes of every run
    runs:
      dino: {recipe: dino-cifar10}
      sop:  {recipe: sop-cifar10, settings: [method.images.count=256]}
    evaluations:
      - {name: on other images, data: other/, protocols: [knn], settings: [knn.k=20], show: [knn.top1_k20]}

Every run has one core and no data workers. How many steps fit into the time is measured at the start of each, where it
is fastest, so that other work on the machine, which only slows it down, counts little. A finished run is not repeated,
so that a study goes on where it was interrupted. An evaluation without `data` uses what the run was trained on.
`untrained: true` in a run stands for the network as it was drawn.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: threads of two runs would wait for each other

from asterism import evaluate, pretrain
from asterism.config import Config, read_yaml
from asterism.errors import UserError
from asterism.train.run import Run

_STRETCHES, _STRETCH = 8, 10  # of steps, to measure their speed


class RunConfig(Config):
    """One row of the table."""

    recipe: str
    settings: tuple[str, ...] = ()
    untrained: bool = False


class EvaluationConfig(Config):
    """What is measured after training."""

    protocols: tuple[str, ...]
    show: tuple[str, ...]  # protocol.value: a column
    name: str | None = None  # put before the columns' names
    data: str | None = None
    settings: tuple[str, ...] = ()


class StudyConfig(Config):
    """Runs that are compared."""

    minutes: float | None = None
    steps: int | None = None
    seeds: tuple[int, ...] = (0,)
    settings: tuple[str, ...] = ()
    runs: dict[str, RunConfig]
    evaluations: list[EvaluationConfig]


def main() -> None:
    options = read_options()
    study = StudyConfig.parse(read_yaml(options.study))
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = options.only or list(study.runs)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        tasks = [
            pool.submit(one_run, study, name, seed, options.out, options.data)
            for seed in study.seeds
            for name in chosen
            if not record_path(options.out, name, seed).is_file()
        ]
        for task in tasks:
            task.result()
    print(table(study, options.out))


def one_run(study: StudyConfig, name: str, seed: int, out: Path, data: str | None) -> None:
    """Train, evaluate, and leave a record."""
    run, folder = study.runs[name], run_path(out, name, seed)
    settings = [*study.settings, *run.settings, f"trainer.seed={seed}", "data.workers=0", "trainer.epochs=auto"]
    steps = 1 if run.untrained else study.steps or steps_within(run, study.minutes, settings, data)
    if run.untrained:
        settings += ["optim.lr=0", "optim.min_lr=0"]
    before = time.process_time()
    trained = pretrain(
        recipe=run.recipe,
        data=data,
        out=folder,
        overwrite=folder.exists(),
        overrides=[*settings, f"trainer.steps={steps}"],
    )
    seconds = time.process_time() - before
    values: dict[str, float | None] = {}
    for part in study.evaluations:
        values |= measured(trained, part)
    record = {"steps": steps, "seconds": seconds, "values": values}
    record_path(out, name, seed).write_text(json.dumps(record, indent=1))
    print(f"{name}, seed {seed}: {record}", flush=True)


def measured(run: Run, part: EvaluationConfig) -> dict[str, float | None]:
    """The columns of one evaluation; empty where the run has no such thing, for example no concepts."""
    try:
        results = evaluate(run, part.data, part.protocols, overrides=part.settings)
    except UserError as error:
        print(f"{run.path}: {error}", flush=True)
        return {column_name(part, column): None for column in part.show}
    values = {}
    for column in part.show:
        protocol, _, value = column.partition(".")
        values[column_name(part, column)] = results[protocol].values[value]
    return values


def steps_within(run: RunConfig, minutes: float | None, settings: Sequence[str], data: str | None) -> int:
    """How many steps the time allows, at the speed of the fastest stretch of a short run."""
    assert minutes is not None, "a study needs minutes or steps"
    short = [f"trainer.steps={_STRETCHES * _STRETCH}", f"monitor.log_every={_STRETCH}", "monitor.knn=null"]
    with tempfile.TemporaryDirectory() as folder:
        tried = pretrain(recipe=run.recipe, data=data, out=Path(folder) / "run", overrides=[*settings, *short])
        fastest = max(record["images_per_second"] for record in tried.metrics())
        return max(1, round(minutes * 60 * fastest / tried.config["trainer"]["batch_size"]))


def table(study: StudyConfig, out: Path) -> str:
    """Markdown: the mean over seeds, and in brackets how far apart they are."""
    columns = [column_name(part, column) for part in study.evaluations for column in part.show]
    lines = [" | ".join(["run", "steps", "minutes", *columns]), " | ".join(["---"] * (3 + len(columns)))]
    for name in study.runs:
        paths = [record_path(out, name, seed) for seed in study.seeds]
        records = [json.loads(path.read_text()) for path in paths if path.is_file()]
        if not records:
            continue
        steps = statistics.mean(record["steps"] for record in records)
        minutes = statistics.mean(record["seconds"] for record in records) / 60
        cells = [spread([record["values"].get(column) for record in records]) for column in columns]
        lines.append(" | ".join([name, f"{steps:.0f}", f"{minutes:.1f}", *cells]))
    return "\n".join(f"| {line} |" for line in lines)


def spread(values: Sequence[Any]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = statistics.mean(known)
    return f"{mean:.2f}" if len(known) == 1 else f"{mean:.2f} (±{(max(known) - min(known)) / 2:.2f})"


def column_name(part: EvaluationConfig, column: str) -> str:
    return column if part.name is None else f"{part.name} {column}"


def run_path(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-{seed}"


def record_path(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}-{seed}.json"


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and records")
    parser.add_argument("--data", help="images to train on, instead of the recipes' own")
    parser.add_argument("--only", nargs="+", help="some of the runs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    return parser.parse_args()


if __name__ == "__main__":
    main()
