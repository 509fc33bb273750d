"""Commands that measure and report: evaluations, the page of a run, and what can be chosen by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asterism.api.parameters import Data, Device, Overrides, PathLike, Read, changes_of
from asterism.inputs import output_path

if TYPE_CHECKING:
    from asterism.evals.result import Result, Scores
    from asterism.models import Weights
    from asterism.nn.encoder import Encoder
    from asterism.tools.choices import Entries
    from asterism.train.run import Run


def _names(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def evaluate(
    model: Annotated[
        PathLike | Run | Weights | Encoder,
        typer.Argument(
            metavar="MODEL", help="`nano`, a run folder, a weights file, a timm name, or `pixels` (no network)."
        ),
    ],
    data: Data = None,
    protocols: Annotated[
        str | Sequence[str] | None,
        typer.Option(
            "--protocols",
            "-p",
            help="Comma-separated: see `asterism list protocols`.  [default: knn; a fine-tuned run: its task]",
        ),
        Read(_names),
    ] = None,
    *,
    train_split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split to train on.  [default: train]")
    ] = None,
    test_split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split to test on.  [default: test, else val]")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option("--baselines", help="Also evaluate raw pixels and an untrained network of the same architecture."),
    ] = False,
    against: Annotated[
        PathLike | Sequence[PathLike],
        typer.Option("--against", metavar="MODEL", help="Also evaluate this model, such as nano; may be repeated."),
    ] = (),
    out: Annotated[
        PathLike | None, typer.Option("--out", "-o", metavar="DIR", help="Write the results here instead of RUN/eval.")
    ] = None,
    device: Device = "auto",
    overrides: Overrides = (),
    **settings: Any,
) -> Scores:
    """Evaluate an encoder on labelled data.

    Results are written to RUN/eval/PROTOCOL.json (on other data: PROTOCOL@DATA.json) with all settings of the protocol,
    each as soon as it is known; those of other models are only written to --out. A labelled folder without train and
    test splits is divided: a fifth of every class is held out. Without --data, the run's own data is used. A fine-tuned
    run is measured by its task's own metric, unless --protocols are given.

    In Python, model may also be an encoder, and a protocol's settings are changed with, for example, `knn={"k": 20}`.
    Returns the results by protocol. Processes of torchrun or srun share the feature extraction; the first one writes.

    Examples:

        asterism evaluate runs/first --data labelled/ --protocols knn
        asterism evaluate runs/first --data labelled/ --baselines --against nano knn.k=20 knn.label_share=0.1
        asterism evaluate vit_small_patch16_224.dino --data labelled/
        asterism evaluate tiny.pth --data labelled/ --weights-option heads=4 --weights-option mean=0.5
    """
    from asterism.data.parts import DataChoice
    from asterism.evals.result import Scores
    from asterism.evals.run import chosen_protocols, run_protocol
    from asterism.models import Weights, open_model, path_of
    from asterism.nn.encoder import Encoder
    from asterism.ops.collectives import joined_processes
    from asterism.train.run import is_finetuned

    with joined_processes("Finished results and features are kept; run the command again"):
        place = None if isinstance(data, Mapping) or data is None else os.fspath(data)
        by_task = protocols is None and not against
        if by_task and not isinstance(model, Weights | Encoder) and is_finetuned(path_of(model)):
            return Scores(task=_evaluate_task(path_of(model), place, test_split, out, device, baselines))
        chosen = ["knn"] if protocols is None else [protocols] if isinstance(protocols, str) else list(protocols)
        configs = chosen_protocols(chosen, changes_of(settings, overrides))
        subject = open_model(model, device)
        choice = DataChoice(subject.data(place), train_split, test_split)
        names = [against] if isinstance(against, str | os.PathLike) else against
        others = {os.fspath(name): open_model(name, device).encoder for name in names}
        folder = None if out is None else output_path(out)
        scores = Scores()
        for name, config in configs.items():
            tested = (name, config, choice, subject.encoder, subject.model)
            result = run_protocol(*tested, baselines=baselines, against=others)
            scores[name] = _written(result, folder, subject.run)
    return scores


def _evaluate_task(
    run: Path, data: str | None, split: str | None, out: PathLike | None, device: str, baselines: bool
) -> Result:
    """The task's own metric of a fine-tuned run."""
    from asterism.finetuning.measuring import evaluate_task
    from asterism.finetuning.model import load_model
    from asterism.finetuning.probing import probed_baselines
    from asterism.finetuning.run import open_finetuned
    from asterism.models import device_named

    opened = open_finetuned(run)
    place = opened.data_path() if data is None else data
    others = probed_baselines(load_model(opened.path).task, opened.finetune_recipe) if baselines else {}
    result = evaluate_task(opened, place, split, device_named(device), others)
    return _written(result, None if out is None else output_path(out), opened.path)


def _written(result: Result, out: Path | None, run: Path | None) -> Result:
    """In `out`, else in the run, if there is one; it may have been moved since it was opened."""
    from asterism.ops.collectives import on_first_process
    from asterism.train.run import open_run

    def write() -> Result:
        if out is not None:
            return result.write(out)
        return result if run is None else result.write(open_run(run).path / "eval")

    return on_first_process(write)


def report(
    *runs: Annotated[
        PathLike | Run, typer.Argument(metavar="RUN...", help="Run folders; several runs share one page.")
    ],
) -> Path:
    """Write a self-contained page with curves and pictures.

    In Python, returns the path of the page.

    Examples:

        asterism report runs/first
        asterism report runs/dino runs/mae
    """
    from asterism.models import path_of
    from asterism.reports.write import write_report  # imports the drawing libraries
    from asterism.train.run import open_run

    return write_report([open_run(path_of(run)).path for run in runs])


def list_entries(
    kind: Annotated[str, typer.Argument(metavar="methods|tasks|recipes|studies|datasets|protocols|models")],
    substring: Annotated[str, typer.Argument(metavar="[FILTER]", help="Part of the name.", show_default=False)] = "",
) -> Entries:
    """List the available methods, tasks, recipes, studies, data sets, protocols or models.

    Examples:

        asterism list methods
        asterism list models small
    """
    from asterism.tools.choices import entries

    return entries(kind, substring)
