"""Train several configurations with the same budget, and compare them: `asterism compare`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asterism.api.parameters import PathLike, instead

if TYPE_CHECKING:
    from asterism.extras.studies.compare import Comparison, Planned

Study = Annotated[
    PathLike, typer.Argument(metavar="STUDY|FILE.yaml", help="What to compare: see `asterism list studies`.")
]
Out = Annotated[
    PathLike | None,
    typer.Option("--out", "-o", metavar="DIR", help="The study's folder.  [default: studies/NAME]"),
]
Data = Annotated[
    PathLike | None,
    typer.Option(
        "--data",
        "-d",
        metavar="DATA",
        help="Train on these images instead of those in the recipes, and evaluate models on them.",
    ),
]
Only = Annotated[Sequence[str], typer.Option(metavar="RUN", help="Only this run; may be repeated.")]


def describe(study: Study, out: Out = None, *, data: Data = None, only: Only = ()) -> str:
    """Every trial of a study with its length and its commands."""
    from asterism.extras.studies.compare import describe_plan

    return describe_plan(_planned(study, out, data, only))


def write_launch_scripts(
    study: Study,
    out: Out = None,
    *,
    data: Data = None,
    only: Only = (),
    launch: str = "torchrun",
    devices: Annotated[int, typer.Option(min=1, help="GPUs per node, for --launch.")] = 8,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes per trial, for --launch slurm.")] = 1,
) -> str:
    """Write a script per trial, for torchrun or slurm, and return how to start them and how to collect the results."""
    from asterism.errors import unknown
    from asterism.extras.studies import compare as comparing
    from asterism.extras.studies.launch import LAUNCHERS, Machines

    planned = _planned(study, out, data, only)
    if launch not in LAUNCHERS:
        raise unknown("launcher", launch, LAUNCHERS)
    machines = Machines("slurm" if launch == "slurm" else "torchrun", devices, nodes)
    start = comparing.write_launch_scripts(planned, machines)
    return f"Start with:   bash {start}\nCollect with: asterism compare {study} --out {planned.place.folder}"


@instead("--dry-run", describe, "Only print the plan and its commands.")
@instead(
    "--launch",
    write_launch_scripts,
    "Write a script per trial instead of training here.",
    metavar="torchrun|slurm",
)
def compare(
    study: Study,
    out: Out = None,
    *,
    data: Data = None,
    only: Only = (),
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Concurrent trials.  [default: one per GPU, else per core]"),
    ] = None,
) -> Comparison:
    """Train several configurations with the same budget, evaluate them, and write a table and learning curves.

    A study is a YAML file with runs, seeds, a budget and evaluations: see docs/compare.md. Finished trials are not
    repeated, so the same command continues after an interruption, and collects the results of jobs that --launch
    started elsewhere.

    Examples:

        asterism compare prototypes-scenes --out studies/prototypes
        asterism compare study.yaml --out studies/mine --only dino --jobs 1
        asterism compare sop-count-imagenet --dry-run
        asterism compare sop-count-imagenet --out studies/count --launch slurm --devices 8
    """
    from asterism.extras.studies.compare import run_study
    from asterism.viz.console import say

    return run_study(_planned(study, out, data, only), jobs, say)


def _planned(study: PathLike, out: PathLike | None, data: PathLike | None, only: Sequence[str]) -> Planned:
    from asterism.extras.studies.compare import plan_study

    place = None if out is None else Path(out)
    return plan_study(os.fspath(study), place, None if data is None else os.fspath(data), only)
