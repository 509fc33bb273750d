"""The command line: every command calls the function of the same name in the Python interface.

Heavy imports are deferred until a command runs, so that --help is fast.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from asterism.errors import Interrupted, UserError, explain_system_error, unknown

if TYPE_CHECKING:
    from asterism.api import Weights
    from asterism.evals.result import Result
    from asterism.train.plan import Plan

_USER_ERROR = 2
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class _Commands(TyperGroup):
    """Turns errors that a user can fix into a message and an exit code; ASTERISM_DEBUG=1 shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            failure = _failure(error)
            if failure is None or os.environ.get("ASTERISM_DEBUG"):
                raise
        message, code = failure
        _warn(message, "red" if code == _USER_ERROR else "yellow")
        raise typer.Exit(code)


def _failure(error: BaseException) -> tuple[str, int] | None:
    """The message and the exit code; None for a bug in Asterism, which keeps its traceback."""
    if isinstance(error, UserError):
        return f"Error: {error}", _USER_ERROR
    if isinstance(error, Interrupted):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return (
            "Stopped. Finished results are kept, and nothing is half written. Repeat the command to continue; a run "
            "with checkpoints continues with --resume RUN.",
            _INTERRUPTED,
        )
    if isinstance(error, BrokenPipeError):  # the reader of our output has gone: click ends the command quietly
        return None
    explanation = explain_system_error(error)
    return None if explanation is None else (f"Error: {explanation}", _USER_ERROR)


app = typer.Typer(
    name="asterism",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help pages take 0.2 s longer
    context_settings={"help_option_names": ["-h", "--help"]},
)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.", show_default=False)
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="DATA", help="A folder of images, tar shards, or a name: see `list datasets`."
    ),
]
AnyModel = Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a weights file or a timm name.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A run folder or weights of a model with concepts.")]
WeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weights-option",
        "-w",
        metavar="WORD=VALUE",
        help="What a weights file does not say: heads=4, mean=0.5,0.5,0.5, name=TIMM_MODEL, …; may be repeated.",
    ),
]
MasksOut = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for masks and overlays.")]
OverwriteFiles = Annotated[bool, typer.Option("--overwrite", help="Replace existing files in --out.")]
Images = Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Where to compute.")]


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # file names may hold bytes that are not text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        """Our own warnings without the line of code that raised them."""
        if category.__module__.startswith("asterism."):
            _warn(f"Warning: {message}", "yellow")
        else:
            shown(message, category, *place, **more)

    warnings.showwarning = show
    app()


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """Learn what is in images, and where, without labels.

    \b
    Examples:
      asterism demo
      asterism pretrain dino --data photos/ --out runs/first
      asterism evaluate runs/first --data labelled/
      asterism finetune runs/first --task classify --data labelled/ --out runs/flowers
      asterism predict runs/flowers --images new/
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism concepts runs/first photo.jpg --index photos.parquet
      asterism search runs/first --index photos.parquet --query a.jpg
      asterism report runs/first
      asterism compare prototypes-scenes
      asterism export runs/first --to onnx --out first-onnx
    """
    if version:
        import asterism

        _say(f"asterism {asterism.__version__}")
        raise typer.Exit


@app.command()
def pretrain(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[METHOD|RECIPE|FILE.yaml]", help="What to train: see `asterism list methods`, `list recipes`."
        ),
    ] = None,
    overrides: Overrides = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume this run from its last checkpoint.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run in --out.")] = False,
    init: Annotated[
        str | None,
        typer.Option(metavar="WEIGHTS", help="Start from these weights: a run, a file, a folder, a timm name."),
    ] = None,
    weights_option: WeightsOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the time, memory and disk that the run needs.")
    ] = False,
) -> None:
    """Train an encoder on images without labels.

    --data is a folder of images (any nesting), a folder of tar shards, or a data set's name. Settings are changed with
    section.key=value, by the names used in the YAML recipes.

    \b
    Examples:
      asterism pretrain dino --data photos/ --out runs/first
      asterism pretrain recipe.yaml --out runs/x optim.lr=3e-4 trainer.batch_size=64
      asterism pretrain dino --data photos/ trainer.minutes=30 --dry-run
      asterism pretrain adapt --init dinov2_vits14_pretrain.pth --data photos/
      asterism pretrain --resume runs/first
    """
    from asterism import api
    from asterism.ops.collectives import rank

    changes = list(overrides or [])
    if recipe is not None and "=" in recipe:
        changes.insert(0, recipe)
        recipe = None
    start = None if init is None else _model(init, weights_option)
    if init is None and weights_option:
        raise UserError("--weights-option describes the weights of --init, which is not given")
    if dry_run:
        _show_plan(api.plan(recipe=recipe, data=data, init=start, overrides=changes))
        return
    run = api.pretrain(
        recipe=recipe, data=data, out=out, resume=resume, overwrite=overwrite, init=start, overrides=changes
    )
    if rank() == 0:
        _say(f"Finished: {run.path}")
        _say(f"Next:     asterism evaluate {run.path} --data LABELLED/  or  asterism report {run.path}")


@app.command()
def finetune(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="What to start from: a run folder, a weights file or a timm name."),
    ] = None,
    overrides: Overrides = None,
    task: Annotated[
        str | None, typer.Option("--task", "-t", metavar="NAME", help="What to learn: see `asterism list tasks`.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.yaml", help="Instead of --task: settings of a paper, see `list recipes`."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="Labelled images: a folder, annotations, or a name."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume this run from its last checkpoint.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run in --out.")] = False,
    weights_option: WeightsOption = None,
) -> None:
    """Train a task on labelled images, starting from a pretrained network.

    A tenth of the training images is held out, and chooses the best weights and when to stop (validation.share).
    Settings are changed with section.key=value; head=NAME chooses the head.

    \b
    Examples:
      asterism finetune runs/first --task classify --data labelled/ --out runs/flowers
      asterism finetune vit_small_patch16_224.dino --task classify --data cifar10 trainer.epochs=50
      asterism finetune runs/first --task probe --data labelled/
      asterism finetune --resume runs/flowers
    """
    from asterism import api
    from asterism.ops.collectives import rank

    changes = list(overrides or [])
    if source is not None and "=" in source and resume is not None:
        changes.insert(0, source)
        source = None
    start = None if source is None else _model(source, weights_option)
    run = api.finetune(start, task, data, out, recipe=recipe, resume=resume, overwrite=overwrite, overrides=changes)
    if rank() == 0:
        _say(f"Finished: {run.path}")
        _say(f"Next:     asterism predict {run.path} --images NEW/  or  asterism evaluate {run.path} --data LABELLED/")


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A fine-tuned run.")],
    images: Annotated[
        Path, typer.Option("--images", "-i", metavar="PLACE", help="A folder of images, one image, or a video.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")] = Path(
        "predictions"
    ),
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 16,
    overwrite: OverwriteFiles = False,
    device: Device = "auto",
) -> None:
    """Write what a fine-tuned run predicts for new images: files for programs, and drawn pictures.

    Classes are written to predictions.csv and predictions.json, and every image with its prediction to drawings/.

    \b
    Examples:
      asterism predict runs/flowers --images new/ --out predictions
      asterism predict runs/flowers --images film.mp4 --out frames
    """
    from asterism import api

    made = api.predict(model, images, out, batch_size=batch_size, overwrite=overwrite, device=device)
    _say(f"{made.images} images: {made.folder / 'drawings'}")
    for path in made.files:
        _say(path)
    for bad in made.skipped:
        _warn(f"skipped {bad}", "yellow")


@app.command()
def evaluate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run folder, a weights file, a timm name, or `pixels` (no network)."),
    ],
    overrides: Overrides = None,
    data: Data = None,
    protocols: Annotated[
        str | None,
        typer.Option(
            "--protocols",
            "-p",
            help="Comma-separated: see `asterism list protocols`.  [default: knn; a fine-tuned run: its task]",
        ),
    ] = None,
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
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write the results here instead of RUN/eval.")
    ] = None,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Evaluate an encoder on labelled data.

    Results are written to RUN/eval/PROTOCOL.json (on other data: PROTOCOL@DATA.json) with all settings of the protocol.
    A labelled folder without train and test splits is divided: a fifth of every class is held out. Without --data, the
    run's own data is used. A fine-tuned run is measured by its task's own metric, unless --protocols are given.

    \b
    Examples:
      asterism evaluate runs/first --data labelled/ --protocols knn
      asterism evaluate runs/first --data labelled/ --baselines knn.k=20 knn.label_share=0.1
      asterism evaluate vit_small_patch16_224.dino --data labelled/
      asterism evaluate tiny.pth --data labelled/ --weights-option heads=4 --weights-option mean=0.5
    """
    from asterism import api
    from asterism.ops.collectives import rank

    names = None if protocols is None else [name.strip() for name in protocols.split(",") if name.strip()]
    results = api.evaluate(
        _model(model, weights_option),
        data,
        names,
        train_split=train_split,
        test_split=test_split,
        baselines=baselines,
        out=out,
        device=device,
        overrides=overrides or [],
    )
    for result in results.values() if rank() == 0 else ():
        _show(result)


@app.command()
def embed(
    model: AnyModel,
    data: Data = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="A .parquet or .npz file.")] = Path(
        "embeddings.parquet"
    ),
    split: Annotated[str | None, typer.Option(metavar="NAME", help="Only this split of the data.")] = None,
    dense: Annotated[bool, typer.Option("--dense", help="Also write one embedding per patch.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 64,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Write one vector per image, with its file name and, if known, its label.

    All splits of the data are embedded unless --split selects one. A model with concepts also writes these and their
    maps, for `asterism concepts --index`.

    \b
    Examples:
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism embed runs/first --data photos/ --out photos.npz --dense
    """
    from asterism import api

    written = api.embed(
        _model(model, weights_option),
        data,
        out,
        split=split,
        dense=dense,
        overwrite=overwrite,
        batch_size=batch_size,
        device=device,
    )
    _say(f"{written.images} images of {written.data} × {written.dim} dimensions: {written.path}")
    if written.skipped:
        _warn(f"skipped {written.skipped} unreadable images, see {written.bad_images}", "yellow")


@app.command()
def concepts(
    model: Model,
    images: Images,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            "-i",
            metavar="FILE",
            help="Images embedded with the same model: shows the nearest ones for each concept.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="The folder of the index's images, if they have moved."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the page and pictures.")] = Path(
        "concepts"
    ),
    neighbours: Annotated[int, typer.Option(min=1, help="Images shown per concept.")] = 5,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The tokenizer whose codes the model predicts, if its file does not contain it."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing pictures in --out.")] = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Show which concepts a model finds in images, and where.

    Draws the map of every concept over each image, and the image reconstructed from its concepts. With an index written
    by `asterism embed`, also shows the nearest images for each concept. Concepts are numbered from 0.

    \b
    Examples:
      asterism concepts runs/first cat.jpg dog.jpg
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism concepts runs/first cat.jpg --index photos.parquet --out cat
    """
    from asterism import api

    _say(
        api.concepts(
            _model(model, weights_option),
            images,
            out,
            index=index,
            data=data,
            neighbours=neighbours,
            tokenizer=tokenizer,
            overwrite=overwrite,
            device=device,
        )
    )


@app.command()
def reconstruct(
    model: Model,
    images: Images,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the pictures.")] = Path(
        "reconstructions"
    ),
    drop: Annotated[
        str, typer.Option(metavar="TOKEN,...", help="Leave these concepts out; the others share their area.")
    ] = "",
    move: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN:DY,DX", help="Move a concept down and right, in patches (negative: up, left)."),
    ] = None,
    swap: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Replace each IMAGE's concepts by those of this image.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The tokenizer whose codes the model predicts, if its file does not contain it."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing pictures in --out.")] = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Reconstruct images from their concepts, unchanged or edited.

    Writes NAME.reconstruction.png and, with an edit, NAME.edited.png. `asterism concepts` shows the number of each
    concept. Edits can be combined: first --swap, then --drop, then every --move.

    \b
    Examples:
      asterism reconstruct runs/first cat.jpg --out made
      asterism reconstruct runs/first cat.jpg --drop 3,5
      asterism reconstruct runs/first cat.jpg --move 3:0,2 --move 5:-1,0
      asterism reconstruct runs/first cat.jpg --swap dog.jpg
    """
    from asterism import api

    moves = dict(_move(text) for text in move or [])
    if len(moves) < len(move or []):
        raise UserError(f"--move {' --move '.join(move or [])} moves a concept twice; give one --move per concept")
    for path in api.reconstruct(
        _model(model, weights_option),
        images,
        out,
        drop=_tokens(drop),
        move=moves,
        swap=swap,
        tokenizer=tokenizer,
        overwrite=overwrite,
        device=device,
    ):
        _say(path)


@app.command()
def track(
    model: AnyModel,
    video: Annotated[
        Path, typer.Option("--video", "-v", metavar="DIR", help="The frames, in the order of their names.")
    ],
    mask: Annotated[
        Path, typer.Option("--mask", "-m", metavar="IMAGE", help="The objects of the first frame, one colour each.")
    ],
    overrides: Overrides = None,
    out: MasksOut = Path("tracked"),
    overwrite: OverwriteFiles = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Track objects through a video, from a mask of its first frame. Nothing is trained.

    The mask is a PNG of the frame's size: black is background, every other value or colour is an object. Writes
    masks/FRAME.png with the same values, overlays/FRAME.jpg and an animation. Settings: short_side, context, topk,
    radius, temperature.

    \b
    Examples:
      asterism track runs/first --video frames/ --mask first.png --out tracked
      asterism track runs/first --video frames/ --mask first.png radius=8 short_side=320
    """
    from asterism import api

    tracked = api.track(
        _model(model, weights_option), video, mask, out, overwrite=overwrite, device=device, overrides=overrides or []
    )
    objects = "1 object" if tracked.objects == 1 else f"{tracked.objects} objects"
    _say(f"{objects} in {tracked.frames} frames: {tracked.folder}")
    _say(tracked.animation)


@app.command()
def segment(
    model: AnyModel,
    examples: Annotated[
        Path, typer.Option("--examples", "-e", metavar="DIR", help="images/NAME.jpg and masks/NAME.png.")
    ],
    images: Annotated[
        Path, typer.Option("--images", "-i", metavar="DIR", help="The images to segment: a folder or one file.")
    ],
    overrides: Overrides = None,
    out: MasksOut = Path("segmented"),
    overwrite: OverwriteFiles = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Segment images from a few labelled examples. Nothing is trained.

    Examples are images/NAME.jpg with masks/NAME.png, or NAME.jpg next to NAME.png. A mask holds a class number at every
    pixel: 0 is the background, 255 is ignored. Settings: k, temperature, short_side.

    \b
    Examples:
      asterism segment runs/first --examples labelled/ --images new/ --out segmented
      asterism segment runs/first --examples labelled/ --images photo.jpg k=10
    """
    from asterism import api

    found = api.segment(
        _model(model, weights_option),
        examples,
        images,
        out,
        overwrite=overwrite,
        device=device,
        overrides=overrides or [],
    )
    _say(f"{found.images} images from {found.examples} examples of {len(found.classes)} classes: {found.folder}")
    for bad in found.skipped:
        _warn(f"skipped {bad}", "yellow")


@app.command()
def search(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The run folder or weights that the index was made with.")
    ],
    index: Annotated[
        Path, typer.Option("--index", "-i", metavar="FILE", help="The collection, as `asterism embed` wrote it.")
    ],
    query: Annotated[
        list[Path], typer.Option("--query", "-q", metavar="IMAGE", help="The image to look for; may be repeated.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The contact sheet: an .html or .png file.")
    ] = Path("neighbours.html"),
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Images shown per query.")] = 12,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="The folder of the index's images, if they have moved."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing sheet.")] = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Find the images of a collection that are most similar to a query, and draw a contact sheet.

    \b
    Examples:
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism search runs/first --index photos.parquet --query a.jpg
      asterism search runs/first --index photos.parquet -q a.jpg -q b.jpg --out sheet.png
    """
    from asterism import api

    found = api.search(
        _model(model, weights_option), index, query, out, count=count, data=data, overwrite=overwrite, device=device
    )
    for path, neighbours in found.items():
        _say(path)
        for neighbour in neighbours:
            _say(f"  {neighbour.similarity:.3f}  {neighbour.key}")
    _say(out)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several runs share one page.")],
) -> None:
    """Write a self-contained page with curves and pictures.

    \b
    Examples:
      asterism report runs/first
      asterism report runs/dino runs/mae
    """
    from asterism import api

    _say(api.report(*runs))


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
        typer.Option("--data", "-d", metavar="DATA", help="Train on these images instead of those in the recipes."),
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
    from asterism.comparing import compare as comparing
    from asterism.comparing.launch import LAUNCHERS, Machines

    planned = comparing.plan_study(study, out, data, only or [])
    if launch is not None:
        if launch not in LAUNCHERS:
            raise unknown("launcher", launch, LAUNCHERS)
        machines = Machines("slurm" if launch == "slurm" else "torchrun", devices, nodes)
        _say(f"Start with:   bash {comparing.write_launch_scripts(planned, machines)}")
        _say(f"Collect with: asterism compare {study} --out {planned.place.folder}")
    elif dry_run:
        _say(comparing.describe_plan(planned))
    else:
        found = comparing.run_study(planned, jobs, _say)
        _say(f"\n{found.table}\n{found.page}")


@app.command()
def export(
    model: AnyModel,
    to: Annotated[str, typer.Option("--to", metavar="onnx|torchscript|hf|timm|safetensors", help="The format.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new folder.")] = Path("exported"),
    dtype: Annotated[
        str, typer.Option(metavar="float32|float16|bfloat16", help="Precision of the weights.")
    ] = "float32",
    license_name: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="For the model card, for example apache-2.0.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in --out.")] = False,
    weights_option: WeightsOption = None,
) -> None:
    """Write a model for other programs: onnxruntime, torch alone, Hugging Face transformers, timm.

    onnx and torchscript take images in [0, 1] and normalise them, for any number of images and, for ViTs, of any size.
    hf and timm folders open with AutoModel and timm.create_model. safetensors is our own file. The export is opened
    again and compared with the model before it is put in place. It includes a model card with data, method and scores.

    \b
    Examples:
      asterism export runs/first --to onnx --out first-onnx
      asterism export runs/first --to hf --out first-hf --license apache-2.0
      asterism export runs/first --to torchscript --dtype float16 --out first-half
    """
    from asterism import api

    chosen = _model(model, weights_option)
    exported = api.export(chosen, to, out, dtype=dtype, license=license_name, overwrite=overwrite)
    for name, size in exported.files.items():
        _say(f"{exported.folder / name}  {_megabytes(size)}")
    if exported.difference is not None:
        _say(f"Largest difference from the model: {exported.difference:.1e}")
    for note in exported.notes:
        _warn(f"Note: {note}", "yellow")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


@app.command("list")
def list_entries(
    kind: Annotated[str, typer.Argument(metavar="methods|tasks|recipes|studies|datasets|protocols|models")],
    substring: Annotated[str, typer.Argument(metavar="[FILTER]", help="Part of the name.", show_default=False)] = "",
) -> None:
    """List the available methods, tasks, recipes, studies, data sets, protocols or models.

    \b
    Examples:
      asterism list methods
      asterism list models small
    """
    from rich.table import Table

    from asterism.tools.choices import entries
    from asterism.viz.console import plain_console

    table = Table("name", "description", box=None, pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for name, summary in entries(kind, substring).items():
        table.add_row(name, summary)
    plain_console().print(table)


# The demo's evaluations, on scenes that it was not trained on; segmentation uses 48 labelled scenes.
_DEMO_SCORES: dict[str, tuple[str, list[str]]] = {
    "knn": ("scenes:size=64,count=2000", ["knn.k=[20]"]),
    "reconstruction": ("scenes:size=64,count=500", ["reconstruction.network=random-convolutions"]),
    "dense-nn": ("scenes:size=64,count=192", ["dense-nn.shares=[0.25]", "dense-nn.draws=3"]),
}


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = Path("demo"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing demo.")] = False,
) -> None:
    """Pretrain on built-in scenes, evaluate, and write a report: minutes on a laptop, no download.

    The report compares the trained encoder with raw pixels and with the same network untrained.
    """
    from asterism import api

    run = api.pretrain(recipe="demo", out=out, overwrite=overwrite)
    for protocol, (data, changes) in _DEMO_SCORES.items():
        for result in api.evaluate(run, data, protocol, baselines=True, overrides=changes).values():
            _show(result)
    _say(f"Report: {api.report(run).resolve()}")


def _model(place: str, options: list[str] | None) -> str | Weights:
    """A model with what the user says about its weights."""
    if not options:
        return place
    from asterism import api
    from asterism.nn.weights.description import parse_options

    return api.weights(place, **parse_options(options))


def _tokens(text: str) -> list[int]:
    """Concept numbers, from "3,5"."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"cannot read --drop {text}; give concept numbers, for example 3,5") from None


def _move(text: str) -> tuple[int, tuple[int, int]]:
    """A concept and its shift down and right, from "3:-1,2"."""
    token, _, shift = text.partition(":")
    try:
        down, right = (int(part) for part in shift.split(","))
        return int(token), (down, right)
    except ValueError:
        raise UserError(f"cannot read --move {text}; give TOKEN:DY,DX in patches, for example 3:-1,2") from None


def _show_plan(plan: Plan) -> None:
    from asterism.train.plan import LONG_HOURS, advice
    from asterism.train.resolve import describe
    from asterism.viz.console import plain_console

    console = plain_console()
    console.print(describe(plan.recipe, plan.images, plan.parameters, plan.device, plan.processes))
    console.print(plan.table())
    if plan.hours > LONG_HOURS:
        console.print(advice(plan.recipe, plan.device))


def _show(result: Result) -> None:
    """A table of values: one row per metric, one column per encoder."""
    from rich.table import Table

    from asterism.viz.console import plain_console, visible

    table = Table("", visible(result.model.name), *map(visible, result.baselines))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, value in result.values.items():
        others = (baseline.get(name) for baseline in result.baselines.values())
        table.add_row(visible(name), *("" if number is None else f"{number:.2f}" for number in (value, *others)))
    console = plain_console(soft_wrap=True)
    console.print(f"{result.protocol}: {result.test.images:,} images of {result.test.name}", style="bold")
    console.print(table, soft_wrap=False)
    for note in result.notes:
        console.print(note)
    if result.path is not None:
        console.print(f"Written to {result.path}")


def _say(text: object) -> None:
    from asterism.viz.console import visible

    print(visible(text))


def _warn(message: str, style: str) -> None:
    from asterism.viz.console import plain_console

    plain_console(stderr=True, soft_wrap=True).print(message, style=style)
