"""Commands that train: pretraining, its cost, fine-tuning, and the demo."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asterism.api.parameters import (
    Data,
    Method,
    NewRun,
    Overrides,
    OverwriteRun,
    PathLike,
    Resume,
    changes_of,
    instead,
)
from asterism.errors import UserError
from asterism.inputs import output_path

if TYPE_CHECKING:
    from asterism.evals.result import Scores
    from asterism.finetuning.run import FinetunedRun
    from asterism.models import Weights
    from asterism.train import kind
    from asterism.train.plan import Plan
    from asterism.train.profiling import Profile
    from asterism.train.recipe import Recipe
    from asterism.train.run import Run

Init = Annotated[
    "PathLike | Run | Weights | None",
    typer.Option(
        metavar="WEIGHTS", help="Start from these weights: a run, a file, a folder, a name; none: from scratch."
    ),
]


def plan(
    method: Method = None,
    data: Data = None,
    *,
    recipe: PathLike | None = None,
    init: Init = None,
    overrides: Overrides = (),
    **settings: Any,
) -> Plan:
    """Estimate what `pretrain` with the same arguments needs on this machine: FLOPs, memory, time and disk."""
    from asterism.train import plan

    _, loaded, weights = _recipe_and_weights(method, data, recipe, init, overrides, settings)
    return plan.plan(loaded, weights)


@instead("--dry-run", plan, "Only show the time, memory and disk that the run needs.")
def pretrain(
    method: Method = None,
    data: Data = None,
    out: NewRun = None,
    *,
    recipe: PathLike | None = None,
    resume: Resume = None,
    overwrite: OverwriteRun = False,
    init: Init = None,
    overrides: Overrides = (),
    **settings: Any,
) -> Run:
    """Train an encoder on images without labels.

    --data is a folder of images (any nesting), a folder of tar shards, or a data set's name. Settings are changed with
    section.key=value, by the names used in the YAML recipes.

    Without a GPU, a method's small form adapts the model nano of the package, unless --init or a network (backbone.dim
    and so on) is given. The run exports what measures better on held-out images, nano or the trained encoder.

    In Python, method is a method's name; or recipe is a shipped recipe's name or a YAML file. out: by default
    runs/<name>. Settings are changed by section (`optim={"lr": 3e-4}`), by dotted key (`**{"optim.lr": 3e-4}`) or as on
    the command line (`overrides=["optim.lr=3e-4"]`). Returns the run.

    Examples:

        asterism pretrain dino --data photos/ --out runs/first
        asterism pretrain recipe.yaml --out runs/x optim.lr=3e-4 trainer.batch_size=64
        asterism pretrain dino --data photos/ trainer.minutes=30 --dry-run
        asterism pretrain adapt --init dinov2_vits14_pretrain.pth --data photos/
        asterism pretrain --resume runs/first
    """
    began = time.monotonic()  # before the imports, which take seconds of the run's minutes
    from asterism.train import engine  # imports Lightning Fabric, which nothing else here needs
    from asterism.train.pretraining import PRETRAINING

    if resume is not None:
        if any(value is not None for value in (recipe, out, init)) or isinstance(method, str) or overwrite:
            raise UserError(
                "--resume continues a run as it is; leave out the method or recipe, --out, --init and --overwrite"
            )
        changes = changes_of(_sections(method, data, settings), overrides)
        return engine.resume(PRETRAINING, Path(resume), changes, began)
    name, loaded, weights = _recipe_and_weights(method, data, recipe, init, overrides, settings, announce=True)
    folder = output_path(out) if out is not None else Path("runs") / Path(name).stem
    return engine.start(PRETRAINING, loaded, folder, init=weights, overwrite=overwrite, began=began)


def profile(
    method: Annotated[
        str | Mapping[str, Any] | None,
        typer.Argument(
            metavar="[METHOD|RECIPE|FILE.yaml]", help="What to profile: see `asterism list methods`, `list recipes`."
        ),
    ] = None,
    data: Data = None,
    *,
    recipe: PathLike | None = None,
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Steps to time, after two that are not.")] = 10,
    overrides: Overrides = (),
    **settings: Any,
) -> Profile:
    """Show where the time of a training step goes: views, networks, loss, backward pass, optimiser, averages.

    Nothing is written. Times are medians over a few steps in one process, which also makes the views.

    Examples:

        asterism profile dino --data photos/
        asterism profile ibot --data scenes backbone.depth=6 trainer.batch_size=32 --steps 5
    """
    from asterism.train import profiling

    _, loaded, weights = _recipe_and_weights(method, data, recipe, None, overrides, settings)
    return profiling.profile(loaded, steps, weights)


def finetune(
    source: Annotated[
        PathLike | Run | Weights | None,
        typer.Argument(metavar="[SOURCE]", help="What to start from: a run, a weights file, a name.  [default: nano]"),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", "-t", metavar="NAME", help="What to learn: see `asterism list tasks`.")
    ] = None,
    data: Annotated[
        PathLike | Mapping[str, Any] | None,
        typer.Option("--data", "-d", metavar="DATA", help="Labelled images: a folder, annotations, or a name."),
    ] = None,
    out: NewRun = None,
    *,
    recipe: Annotated[
        PathLike | None,
        typer.Option(metavar="NAME|FILE.yaml", help="Instead of --task: settings of a paper, see `list recipes`."),
    ] = None,
    resume: Resume = None,
    overwrite: OverwriteRun = False,
    overrides: Overrides = (),
    **settings: Any,
) -> FinetunedRun:
    """Train a task on labelled images, starting from a pretrained network.

    A tenth of the training images is held out, and chooses the best weights and when to stop (validation.share).
    Classification and linear segmentation start from a linear probe of the frozen network, which is kept unless
    fine-tuning improves on it. Settings are changed with section.key=value; head=NAME chooses the head.

    In Python, settings are changed as in `pretrain`. out: by default runs/<task>. Returns the run.

    Examples:

        asterism finetune runs/first --task classify --data labelled/ --out runs/flowers
        asterism finetune vit_small_patch16_224.dino --task classify --data cifar10 trainer.epochs=50
        asterism finetune runs/first --task probe --data labelled/
        asterism finetune --resume runs/flowers
    """
    began = time.monotonic()
    from asterism.finetuning.opening import FINETUNING
    from asterism.finetuning.recipe import load_finetune_recipe
    from asterism.models import place_of
    from asterism.nn.weights.packaged import NANO
    from asterism.train import engine
    from asterism.viz.console import say

    changes = changes_of(_sections(None, data, settings), overrides)
    if resume is not None:
        if any(value is not None for value in (source, task, recipe, out)) or overwrite:
            raise UserError(
                "--resume continues a run as it is; leave out the source, --task, --recipe, --out and --overwrite"
            )
        return engine.resume(FINETUNING, Path(resume), changes, began=began)
    if source is None:
        say(f"Starting from {NANO}, the model in the package")
    weights, named = place_of(NANO if source is None else source), None if recipe is None else str(recipe)
    loaded = load_finetune_recipe(weights.place, task=task, recipe=named, options=weights.options, overrides=changes)
    folder = (
        output_path(out)
        if out is not None
        else Path("runs") / (loaded.task.name if named is None else Path(named).stem)
    )
    return engine.start(FINETUNING, loaded, folder, overwrite=overwrite, began=began)


# The demo's evaluations, on scenes that it was not trained on; segmentation uses 48 labelled scenes. Each is of the
# trained encoder and, where it can take part, of the package's model, which was never trained on a scene.
_DEMO_SCORES: dict[str, tuple[str, list[str]]] = {
    "knn": ("scenes:size=64,count=2000", ["knn.k=[20]"]),
    "reconstruction": ("scenes:size=64,count=500", ["reconstruction.network=random-convolutions"]),
    "dense-nn": ("scenes:size=64,count=192", ["dense-nn.shares=[0.25]", "dense-nn.draws=3"]),
}


def demo(
    out: Annotated[PathLike, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = "demo",
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing demo.")] = False,
) -> Scores:
    """Pretrain on built-in scenes, evaluate, and write a report: minutes on a laptop, no download.

    First shows what nano, the model in the package, does with no training. The report compares the trained encoder with
    nano, raw pixels, and the same network untrained.
    """
    from asterism import api
    from asterism.evals.result import Scores
    from asterism.nn.weights.packaged import NANO, is_present
    from asterism.train.run import check_free
    from asterism.viz.console import say

    check_free(output_path(out), overwrite)
    others = [NANO] if is_present(NANO) else []
    for other in others:
        data, changes = _DEMO_SCORES["knn"]
        named = api.evaluate(other, data, "knn", overrides=changes)["knn"].values["top1_k20"]
        say(f"With no training, {other} names {named:.1f} % of new scenes by their neighbours. Now train on scenes:")
    run = api.pretrain(recipe="demo", out=out, overwrite=overwrite)
    scores = Scores()
    for protocol, (data, changes) in _DEMO_SCORES.items():
        against = [] if protocol == "reconstruction" else others
        scores |= api.evaluate(run, data, protocol, baselines=True, against=against, overrides=changes)
    scores.report = api.report(run).resolve()
    return scores


def _recipe_and_changes(
    method: str | Mapping[str, Any] | None,
    data: PathLike | Mapping[str, Any] | None,
    recipe: PathLike | None,
    overrides: Sequence[str],
    settings: Mapping[str, Any],
) -> tuple[str, list[str]]:
    """The name of the recipe, and all changes to it."""
    name = None if isinstance(method, Mapping) else method
    if (name is None) == (recipe is None):
        raise UserError("give one method or recipe, for example `asterism pretrain dino`; see `asterism list methods`")
    return str(name or recipe), changes_of(_sections(method, data, settings), overrides)


def _sections(
    method: str | Mapping[str, Any] | None, data: PathLike | Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings, with those of the method and the data."""
    given: dict[str, Any] = {"method": method} if isinstance(method, Mapping) else {}
    if data is not None:
        given["data"] = data if isinstance(data, Mapping) else {"path": data}
    return {**settings, **given}


def _recipe_and_weights(
    method: str | Mapping[str, Any] | None,
    data: PathLike | Mapping[str, Any] | None,
    recipe: PathLike | None,
    init: PathLike | Run | Weights | None,
    overrides: Sequence[str],
    settings: Mapping[str, Any],
    *,
    announce: bool = False,
) -> tuple[str, Recipe, kind.Init | None]:
    """The name of the recipe, the recipe, and the weights that the run starts from."""
    from asterism.models import place_of
    from asterism.nn.weights.packaged import is_present
    from asterism.ops.collectives import rank
    from asterism.train.kind import Init
    from asterism.train.recipe import load_recipe, model_to_adapt, takes_small_form

    name, changes = _recipe_and_changes(method, data, recipe, overrides, settings)
    usual = model_to_adapt(name, changes) if init is None else None
    adapts = usual is not None and is_present(usual)
    if announce and takes_small_form(name, changes) and rank() == 0:
        start = f", starting from {usual} (--init none: from scratch)" if adapts else ""
        if usual is not None and not adapts:
            start = f" from scratch, because {usual} is not part of this installation"
        print(f"No GPU found: training the small CPU version of {name!r}{start}; --dry-run shows time, memory and disk")
    loaded, source = load_recipe(name, changes, adapts=adapts), usual if adapts else init
    if source is None or source == "none":
        return name, loaded, None
    weights = place_of(source)
    return name, loaded, Init(weights.place, weights.options)
