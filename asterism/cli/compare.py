"""`asterism compare`: studies of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.printing import say
from asterism.errors import unknown


@app.command()
def compare(
    study: Annotated[
        str, typer.Argument(metavar="STUDY|FILE.yaml", help="What to compare: see `asterism list studies`.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="The study's folder.  [default: studies/NAME]")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="DATA",
            help="Train on these images instead of those in the recipes, and evaluate models on them.",
        ),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Only this run; may be repeated.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Concurrent trials.  [default: one per GPU, else per core]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the plan and its commands.")] = False,
    launch: Annotated[
        str | None, typer.Option(metavar="torchrun|slurm", help="Write a script per trial instead of training here.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="GPUs per node, for --launch.")] = 8,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes per trial, for --launch slurm.")] = 1,
) -> None:
    """Train several configurations with the same budget, evaluate them, and write a table and learning curves.

    A study is a YAML file with runs, seeds, a budget and evaluations: see docs/compare.md. Finished trials are not
    repeated, so the same command continues after an interruption, and collects the results of jobs that --launch
    started elsewhere.

    \b
    Examples:
      asterism compare prototypes-scenes --out studies/prototypes
      asterism compare study.yaml --out studies/mine --only dino --jobs 1
      asterism compare sop-count-imagenet --dry-run
      asterism compare sop-count-imagenet --out studies/count --launch slurm --devices 8
    """
    from asterism.extras.studies import compare as comparing
    from asterism.extras.studies.launch import LAUNCHERS, Machines

    planned = comparing.plan_study(study, out, data, only or [])
    if launch is not None:
        if launch not in LAUNCHERS:
            raise unknown("launcher", launch, LAUNCHERS)
        machines = Machines("slurm" if launch == "slurm" else "torchrun", devices, nodes)
        say(f"Start with:   bash {comparing.write_launch_scripts(planned, machines)}")
        say(f"Collect with: asterism compare {study} --out {planned.place.folder}")
    elif dry_run:
        say(comparing.describe_plan(planned))
    else:
        found = comparing.run_study(planned, jobs, say)
        say(f"\n{found.table}\n{found.page}")
