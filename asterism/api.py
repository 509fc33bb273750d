"""The Python interface. Its names are those of the command line and of the YAML recipes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from asterism.config import with_overrides
from asterism.data import Source, open_source
from asterism.data.parts import DataChoice
from asterism.data.sources.splits import EVERYTHING, UnknownSplit
from asterism.errors import UserError, unknown
from asterism.evals.result import Result
from asterism.evals.run import chosen_protocols, run_protocol
from asterism.images.pictures import Picture, Pictures, as_list
from asterism.index.write import Written, check_target, write_embeddings
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.pixel_baseline import pixel_encoder
from asterism.nn.weights.description import weights_options
from asterism.nn.weights.load import load_encoder
from asterism.ops.collectives import join_processes, on_first_process, rank
from asterism.tools.output_folder import check_folder
from asterism.train.run import Run, is_aligned, is_finetuned, open_run
from asterism.types import Model

if TYPE_CHECKING:
    from asterism.extras.studies.compare import Comparison
    from asterism.extras.words.run import AlignedRun
    from asterism.finetuning.run import FinetunedRun
    from asterism.tools.export.export import Exported
    from asterism.tools.predict import PredictedFolder
    from asterism.tools.search import Neighbour
    from asterism.tools.segment import SegmentedFolder
    from asterism.tools.track import Tracked
    from asterism.train.plan import Plan
    from asterism.train.processes import Init
    from asterism.train.profiling import Profile
    from asterism.viz.page import Gallery

PathLike = str | os.PathLike[str]


def pretrain(
    method: str | Mapping[str, Any] | None = None,
    data: PathLike | Mapping[str, Any] | None = None,
    out: PathLike | None = None,
    *,
    recipe: PathLike | None = None,
    resume: PathLike | None = None,
    overwrite: bool = False,
    init: PathLike | Weights | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Run:
    """Train an encoder on images without labels, and return its run.

    method: a method's name; or recipe: a shipped recipe's name or a YAML file. data: a folder, shards or a data set's
    name. out: the new run folder, by default runs/<name>. Settings are changed by section (`optim={"lr": 3e-4}`), by
    dotted key (`**{"optim.lr": 3e-4}`) or as on the command line (`overrides=["optim.lr=3e-4"]`).
    """
    from asterism.train import start  # imports Lightning Fabric, which nothing else here needs
    from asterism.train.recipe import load_recipe, takes_small_form

    name, changes = _recipe_and_overrides(method, data, recipe, overrides, settings)
    if resume is not None:
        if any(value is not None for value in (name, out, init)) or overwrite:
            raise UserError(
                "--resume continues a run as it is; leave out the method or recipe, --out, --init and --overwrite"
            )
        return start.resume(Path(resume), tuple(changes), _examples)
    if name is None:
        raise _no_recipe()
    folder = Path(out) if out is not None else Path("runs") / Path(name).stem
    if takes_small_form(name, changes) and rank() == 0:
        print(f"No GPU found: training the small CPU version of {name!r}; --dry-run shows time, memory and disk")
    return start.pretrain(load_recipe(name, changes), folder, overwrite=overwrite, init=_init(init), examples=_examples)


def plan(
    method: str | Mapping[str, Any] | None = None,
    data: PathLike | Mapping[str, Any] | None = None,
    *,
    recipe: PathLike | None = None,
    init: PathLike | Weights | None = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Plan:
    """Estimate what `pretrain` with the same arguments needs on this machine: FLOPs, memory, time and disk."""
    from asterism.train import start
    from asterism.train.recipe import load_recipe

    name, changes = _recipe_and_overrides(method, data, recipe, overrides, settings)
    if name is None:
        raise _no_recipe()
    return start.plan(load_recipe(name, changes), _init(init))


def profile(
    method: str | Mapping[str, Any] | None = None,
    data: PathLike | Mapping[str, Any] | None = None,
    *,
    recipe: PathLike | None = None,
    steps: int = 10,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Profile:
    """Measure where the time of a training step of `pretrain` goes on this machine; nothing is written."""
    from asterism.train import start
    from asterism.train.recipe import load_recipe

    name, changes = _recipe_and_overrides(method, data, recipe, overrides, settings)
    if name is None:
        raise _no_recipe()
    return start.profile(load_recipe(name, changes), steps)


def finetune(
    source: PathLike | Run | Weights | None = None,
    task: str | None = None,
    data: PathLike | Mapping[str, Any] | None = None,
    out: PathLike | None = None,
    *,
    recipe: PathLike | None = None,
    resume: PathLike | None = None,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> FinetunedRun:
    """Train a task on labelled images, starting from a pretrained network, and return its run.

    source: a run, a weights file or a timm name. task: its name, such as "classify"; or recipe: a shipped recipe of
    fine-tuning or a YAML file. data: labelled images. out: the new run folder, by default runs/<task>. Settings are
    changed as in `pretrain`, and `head="NAME"` is short for `**{"task.head.name": "NAME"}`. The best weights are chosen
    on held-out training images.
    """
    from asterism.finetuning import start
    from asterism.finetuning.recipe import load_finetune_recipe

    if data is not None:
        settings["data"] = data if isinstance(data, Mapping) else {"path": os.fspath(data)}
    changes = [*_as_overrides(settings), *overrides]
    if resume is not None:
        if any(value is not None for value in (source, task, recipe, out)) or overwrite:
            raise UserError(
                "--resume continues a run as it is; leave out the source, --task, --recipe, --out and --overwrite"
            )
        return start.resume(Path(resume), tuple(changes))
    if source is None:
        raise UserError("give what to start from: a run folder, a weights file or a timm name")
    place, options = _place_and_options(source)
    named = None if recipe is None else os.fspath(recipe)
    loaded = load_finetune_recipe(place, task=task, recipe=named, options=options, overrides=changes)
    folder = Path(out) if out is not None else Path("runs") / (loaded.task.name if named is None else Path(named).stem)
    return start.finetune(loaded, folder, overwrite=overwrite)


def align(
    source: PathLike | Run | Weights | None = None,
    data: PathLike | Mapping[str, Any] | None = None,
    text: str | None = None,
    out: PathLike | None = None,
    *,
    resume: PathLike | None = None,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> AlignedRun:
    """Align a frozen encoder with text on captioned images, and return the run.

    source: a run, a weights file or a timm name. data: captioned images, see docs/words.md. text:
    "own", a tower that is trained here (the default); a folder of transformers or open_clip; hf:ORGANISATION/MODEL; or
    open_clip:MODEL:WEIGHTS. out: the new run folder, by default runs/aligned. Settings are changed as in `pretrain`;
    `probe={"tokens": "class"}` chooses what the probe reads: sparse, class, patches, sparse+class or mean-patch.
    """
    from asterism.extras.words import start
    from asterism.extras.words.recipe import load_align_recipe

    if data is not None:
        settings["data"] = data if isinstance(data, Mapping) else {"path": os.fspath(data)}
    changes = [*_as_overrides(settings), *overrides]
    if resume is not None:
        if any(value is not None for value in (source, text, out)) or overwrite:
            raise UserError("--resume continues a run as it is; leave out the source, --text, --out and --overwrite")
        return start.resume(Path(resume), tuple(changes))
    if source is None:
        raise UserError("give the encoder to align: a run folder, a weights file or a timm name")
    place, options = _place_and_options(source)
    recipe = load_align_recipe(place, text, options, changes)
    return start.align(recipe, Path("runs/aligned") if out is None else Path(out), overwrite=overwrite)


def predict(
    model: PathLike | Run,
    images: PathLike,
    out: PathLike = "predictions",
    *,
    batch_size: int = 16,
    overwrite: bool = False,
    device: str = "auto",
) -> PredictedFolder:
    """Write what a fine-tuned run predicts for an image, a folder or a video, as files and as drawn pictures.

    For one prediction in Python: `asterism.load(run).predict("photo.jpg")`.
    """
    from asterism.finetuning.model import load_model
    from asterism.tools.predict import predict_images

    folder = check_folder(Path(out), overwrite)
    loaded = load_model(_path_of(model))
    loaded.to(_device(device))
    return predict_images(loaded, Path(images), folder, batch_size=batch_size)


@dataclass(frozen=True)
class Weights:
    """Weights by their place, and what their file does not say; made by `weights`, loaded where a model is expected."""

    place: str
    options: Mapping[str, Any]


def weights(model: PathLike, **options: Any) -> Weights:
    """A model for the functions of this module, with the options of `load`: `evaluate(weights("w.pth", heads=4), …)`.

    Unlike `load`, it keeps the name of the file for results, and also fits `pretrain(init=…)`.
    """
    weights_options(**options)  # refuses impossible values at once
    return Weights(os.fspath(model), options)


def load(
    model: PathLike | Run | Weights,
    *,
    heads: int | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    image_size: int | None = None,
    eps: float | None = None,
    activation: str | None = None,
    pooling: str | None = None,
    name: str | None = None,
    family: str | None = None,
    which: str = "teacher",
    decoder_heads: int | None = None,
    tokenizer: PathLike | None = None,
) -> Encoder:
    """Load the encoder of a run, a weights file, a folder of transformers or timm, a timm name, or hf:OWNER/MODEL.

    That of a fine-tuned run also predicts: `load(run).predict("photo.jpg")`. That of an aligned run also reads:
    `load(run).encode_text("two dogs")` is in the same space as `load(run).encode("photo.jpg").aligned`.

    docs/weights.md lists the families of files. The other arguments say what a file may not: heads of the attention,
    mean and std of its pixels in [0, 1], image_size in pixels, eps of its LayerNorms, activation of its MLPs, and
    pooling (class, mean or attention), which makes an image's vector. They take precedence over settings next to the
    file. name is the timm model that the weights belong to and gives all of them. What nothing states is guessed, and
    one warning names every guess.

    family: read the file as this family instead of detecting it. which: teacher or student, if it contains both.
    tokenizer: the file or `vq` run whose codes a STELLAR decoder predicts; decoder_heads: of that decoder.
    """
    words = {
        "heads": heads,
        "mean": mean,
        "std": std,
        "image_size": image_size,
        "eps": eps,
        "activation": activation,
        "pooling": pooling,
        "name": name,
        "family": family,
        "decoder_heads": decoder_heads,
        "tokenizer": None if tokenizer is None else os.fspath(tokenizer),
    }
    given = {word: value for word, value in words.items() if value is not None}
    if which != "teacher":
        given["which"] = which
    place, options = _place_and_options(model)
    if not options and not given and _is_model(place):
        from asterism.finetuning.model import load_model

        return load_model(Path(place))
    if (alignment := _alignment_of(place)) is not None:
        from asterism.extras.words.aligned import load_aligned

        return load_aligned(alignment, **{**options, **given})
    return load_encoder(place, **{**options, **given})


def evaluate(
    model: PathLike | Run | Weights | Encoder,
    data: PathLike | None = None,
    protocols: str | Sequence[str] | None = None,
    *,
    train_split: str | None = None,
    test_split: str | None = None,
    baselines: bool = False,
    out: PathLike | None = None,
    device: str = "auto",
    overrides: Sequence[str] = (),
    **settings: Any,
) -> dict[str, Result]:
    """Evaluate an encoder with one or several protocols; returns the results by protocol.

    model: a run, anything that `load` takes, an encoder, or "pixels". data: labelled images; by default the run's own
    data. protocols: by default knn, and for a fine-tuned run the task's own metric on the test part of the data. A
    protocol's settings are changed with, for example, `knn={"k": 20}`. Results of a run are written to its
    `eval` folder, others only to `out`, each as soon as it is known. With `baselines`, raw pixels and an untrained
    network of the same architecture are evaluated too. Processes started by torchrun share the feature extraction; the
    first one writes.
    """
    join_processes()
    if protocols is None and not isinstance(model, Weights | Encoder) and is_finetuned(_path_of(model)):
        return {"task": _evaluate_task(_path_of(model), data, test_split, out, device)}
    protocols = ("knn",) if protocols is None else protocols
    names = [protocols] if isinstance(protocols, str) else protocols
    configs = chosen_protocols(names, [*_as_overrides(settings), *overrides])
    subject = _subject(model, device)
    choice = DataChoice(_data_of(subject, data), train_split, test_split)
    folder = Path(out) if out is not None else subject.run and subject.run / "eval"
    results = {}
    for name, config in configs.items():
        result = run_protocol(name, config, choice, subject.encoder, subject.model, baselines=baselines)
        results[name] = result if folder is None else _written(result, folder)
    return results


def compare(
    study: PathLike,
    out: PathLike | None = None,
    *,
    data: PathLike | None = None,
    only: Sequence[str] = (),
    jobs: int | None = None,
) -> Comparison:
    """Train and evaluate the runs of a study, and write a table, a CSV file and a page with the results.

    study: a YAML file, or the name of a shipped study. out: its folder, by default studies/<name>; finished trials in
    it are not repeated, and interrupted ones are resumed. data: images to train on instead of those in the recipes.
    only: a subset of the runs. jobs: concurrent trials, by default one per GPU, or one per core without GPUs.
    """
    from asterism.extras.studies.compare import plan_study, run_study

    place = None if out is None else Path(out)
    planned = plan_study(os.fspath(study), place, None if data is None else os.fspath(data), only)
    return run_study(planned, jobs, print)


def embed(
    model: PathLike | Run | Weights | Encoder,
    data: PathLike | None = None,
    out: PathLike = "embeddings.parquet",
    *,
    split: str | None = None,
    dense: bool = False,
    overwrite: bool = False,
    batch_size: int = 64,
    device: str = "auto",
) -> Written:
    """Write one vector per image to a .parquet or .npz file; with `dense` also one per patch.

    All splits are embedded unless `split` selects one. (Generated scenes are endless: for these it is the training
    split.) The vector of an image is `load(model).encode(image).cls`. A model with concepts also writes these and their
    maps, so that `concepts` can search the file. Unreadable images are skipped and listed in a file next to it.
    """
    target = check_target(Path(out), overwrite)
    subject = _subject(model, device)
    path = _data_of(subject, data)
    source, split = _everything(path) if split is None else (open_source(path, split), split)
    return write_embeddings(
        subject.encoder,
        source,
        target,
        subject.model,
        dense=dense,
        batch_size=batch_size,
        opened=(str(Path(path).resolve()) if Path(path).exists() else path, split),
    )


def report(*runs: PathLike | Run) -> Path:
    """Write a self-contained page with curves and pictures, and return its path; several runs share one page."""
    from asterism.reports.write import write_report  # imports the drawing libraries

    return write_report([open_run(_path_of(run)).path for run in runs])


def concepts(
    model: PathLike | Run | Weights | Encoder,
    images: Pictures,
    out: PathLike = "concepts",
    *,
    text: str | Sequence[str] = (),
    index: PathLike | None = None,
    data: PathLike | None = None,
    neighbours: int = 5,
    tokenizer: PathLike | None = None,
    overwrite: bool = False,
    device: str = "auto",
) -> Path:
    """Draw the map of every concept in each image, and the image reconstructed from them; returns the page's path.

    images: anything that `encode` takes. text: words or sentences to find in the images, if the model is aligned with
    text: the page then shows which concepts they mean, and where. index: a file that `embed` wrote with the same model;
    the page then shows the nearest of its images for each concept. data: the folder of these images, if they have
    moved. tokenizer: as in `load`.
    """
    from asterism.tools.concepts import open_collection, write_concepts  # imports the drawing libraries

    pictures = as_list(images)
    folder = check_folder(Path(out), overwrite)
    encoder, name = _concept_encoder(model, device, tokenizer)
    words = [text] if isinstance(text, str) else list(text)
    place = None if data is None else os.fspath(data)
    collection = None if index is None else open_collection(Path(index), place, encoder, neighbours)
    return write_concepts(encoder, pictures, folder, name, collection, words)


def reconstruct(
    model: PathLike | Run | Weights | Encoder,
    images: Pictures,
    out: PathLike = "reconstructions",
    *,
    drop: Sequence[int] = (),
    move: Mapping[int, tuple[int, int]] | None = None,
    swap: Picture | None = None,
    tokenizer: PathLike | None = None,
    overwrite: bool = False,
    device: str = "auto",
) -> list[Path]:
    """Write images reconstructed from their concepts, unchanged and, on request, edited; returns the files.

    drop: concepts to leave out; the others share their area. move: concepts whose maps are moved (down, right), in
    cells of the patch grid. swap: an image whose concepts replace those of each image, in the same places. tokenizer:
    as in `load`. For tensors instead of files: `encoder.reconstruct(features.sparse, features.where)` and
    `asterism.ops.concept_edits`.
    """
    from asterism.tools.reconstruct import Edit, Move, write_reconstructions  # imports the drawing libraries

    pictures = as_list(images)
    folder = check_folder(Path(out), overwrite)
    encoder, _ = _concept_encoder(model, device, tokenizer)
    moves = tuple(Move(token, down, right) for token, (down, right) in (move or {}).items())
    return write_reconstructions(encoder, pictures, folder, Edit(swap, tuple(drop), moves))


def track(
    model: PathLike | Run | Weights | Encoder,
    video: PathLike,
    mask: PathLike,
    out: PathLike = "tracked",
    *,
    overwrite: bool = False,
    device: str = "auto",
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Tracked:
    """Track the objects of a first-frame mask through a video; writes masks, overlays and an animation.

    video: a folder of frames. mask: an image of the first frame's size, with one value or colour per object.
    Settings are those of `asterism.tools.track.TrackingObjects`, for example `radius=8`. The result's `lost` names the
    frames in which an object is lost.
    """
    from asterism.tools.track import TrackingObjects, track_video

    changes = with_overrides({"first_mask": "shares"}, [*_as_overrides(settings), *overrides])
    folder, config = check_folder(Path(out), overwrite), TrackingObjects.parse(changes)
    return track_video(_subject(model, device).encoder, Path(video), Path(mask), folder, config)


def segment(
    model: PathLike | Run | Weights | Encoder,
    examples: PathLike,
    images: PathLike,
    out: PathLike = "segmented",
    *,
    overwrite: bool = False,
    device: str = "auto",
    overrides: Sequence[str] = (),
    **settings: Any,
) -> SegmentedFolder:
    """Segment images from a few labelled examples, without training the network; writes masks, overlays, confidences.

    examples: a folder with images/ and masks/ of the same names, or NAME.jpg next to NAME.png. images: a folder or one
    file. Settings are those of `asterism.tools.segment.Segmenting`, for example `head="vote"`. The result's `estimate`
    has the IoU to expect, from segmenting each example with the help of the others.
    """
    from asterism.tools.segment import Segmenting, segment_images

    folder = check_folder(Path(out), overwrite)
    config = Segmenting.parse(with_overrides({}, [*_as_overrides(settings), *overrides]))
    return segment_images(_subject(model, device).encoder, Path(examples), Path(images), folder, config)


def search(
    model: PathLike | Run | Weights | Encoder,
    index: PathLike,
    queries: PathLike | Sequence[PathLike] = (),
    out: PathLike = "neighbours.html",
    *,
    text: str | Sequence[str] = (),
    count: int = 12,
    data: PathLike | None = None,
    overwrite: bool = False,
    device: str = "auto",
) -> dict[Path | str, list[Neighbour]]:
    """Find the images of a collection that are most similar to each query; also writes a contact sheet (.html or .png).

    text: sentences to search for, if the model is aligned with text. index: a file that `embed` wrote with the same
    model, or with the encoder that was aligned. data: the folder of its images, if they have moved.
    """
    from asterism.tools.search import check_sheet, search_images

    paths = [Path(query) for query in ([queries] if isinstance(queries, str | os.PathLike) else queries)]
    sentences = [text] if isinstance(text, str) else list(text)
    if not paths and not sentences:
        raise UserError("give at least one query: --query IMAGE or --text SENTENCE")
    sheet = check_sheet(Path(out), overwrite)
    place = None if data is None else os.fspath(data)
    encoder = _subject(model, device).encoder
    return search_images(encoder, Path(index), [*paths, *sentences], sheet, count=count, data=place)


def explore(
    model: PathLike | Run | Weights | Encoder,
    data: PathLike | None = None,
    *,
    index: PathLike | None = None,
    split: str | None = None,
    other: PathLike | Run | Weights | Encoder | None = None,
    allow_writes: PathLike | None = None,
    port: int = 0,
    browser: bool = True,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> None:
    """Serve a page on the loopback address to walk through what a model learned; returns when it is interrupted.

    data: the images, by default those of the run; all splits unless `split` selects one. index: a file that `embed`
    wrote with the same model, instead of embedding the images now; data is then the folder of its images, if they have
    moved. other: a second model, shown side by side. allow_writes: the only folder that copies and labels may be
    written to; without it the page only reads. port: 0 takes a free one. say: gets the address.
    """
    from asterism.extras.explorer.model import ExploredModel
    from asterism.extras.explorer.open import open_explored
    from asterism.extras.explorer.server import check_installed, serve

    check_installed()
    if index is not None and split is not None:
        raise UserError("an index records the split of its images; leave out --split, or leave out --index")
    subjects = [_subject(each, device) for each in (model, other) if each is not None]
    models = [ExploredModel(subject.model.name, subject.encoder, subject.run) for subject in subjects]
    images = None
    if index is None:
        path = _data_of(subjects[0], data)
        images = _everything(path)[0] if split is None else open_source(path, split)
    place = None if index is None else Path(index)
    writes = None if allow_writes is None else Path(allow_writes)
    explored = open_explored(models, images, place, None if data is None else os.fspath(data), writes)
    serve(explored, port, show=browser, say=say)


def export(
    model: PathLike | Run | Weights | Encoder,
    to: str,
    out: PathLike = "exported",
    *,
    dtype: str = "float32",
    license: str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write an encoder for other programs, compare its outputs with the encoder's, and return files and difference.

    to: onnx, torchscript, hf (a folder for Hugging Face's AutoModel), timm (a folder for timm.create_model) or
    safetensors (our own file). model: a run, anything that `load` takes, or an encoder. dtype: float32, float16 or
    bfloat16. license: for the model card, for example "apache-2.0".
    """
    from asterism.tools.export.export import check_out, dtype_named, export_encoder, target_named
    from asterism.tools.export.model_card import origin_of

    target, precision = target_named(to), dtype_named(dtype)
    source = None if isinstance(model, Encoder) else Path(_place_and_options(model)[0])
    folder = check_out(Path(out), overwrite, source)
    subject = _subject(model, "auto" if isinstance(model, Encoder) else "cpu")
    origin = origin_of(subject.model.name, subject.run)
    return export_encoder(subject.encoder, target, folder, precision, origin, license)


def _examples(run: Run) -> Mapping[str, Gallery]:
    """Pictures of a finished run for its trackers."""
    from asterism.reports.examples import example_pictures  # imports the drawing libraries

    return example_pictures(run)


@dataclass(frozen=True)
class _Subject:
    """An encoder and where it came from."""

    encoder: Encoder
    model: Model
    run: Path | None  # its run folder, if it has one


def _subject(model: PathLike | Run | Weights | Encoder, device: str, tokenizer: PathLike | None = None) -> _Subject:
    if isinstance(model, Encoder):
        if tokenizer is not None:
            raise UserError("a loaded encoder already has its tokenizer; pass tokenizer to asterism.load instead")
        encoder = model if device == "auto" else model.to(_device(device))
        return _Subject(encoder, Model(type(model).__name__, encoder.step), None)
    place = _device(device)
    name, options = _place_and_options(model)
    path = Path(name)
    if name == "pixels" and options:
        raise UserError("pixels are not a network and take no weights options; leave them out")
    encoder = pixel_encoder() if name == "pixels" else load(_with_tokenizer(name, options, tokenizer))
    return _Subject(encoder.to(place), Model(name, encoder.step), path if (path / "config.yaml").is_file() else None)


def _place_and_options(model: PathLike | Run | Weights) -> tuple[str, Mapping[str, Any]]:
    if isinstance(model, Weights):
        return model.place, model.options
    return os.fspath(model.path if isinstance(model, Run) else model), {}


def _is_model(place: str) -> bool:
    """Whether it is a fine-tuned model: a run, an export, or a file. Other places are not read."""
    path = Path(place)
    if not (path / "model.safetensors").is_file() and path.name != "model.safetensors":
        return False
    from asterism.finetuning.model import model_file

    return model_file(path) is not None


def _alignment_of(place: str) -> Path | None:
    """The file of an alignment with text, if there is one. Other places are not read."""
    path = Path(place)
    if not (path / "alignment.safetensors").is_file() and path.name != "alignment.safetensors":
        return None
    from asterism.extras.words.aligned import alignment_file

    return alignment_file(path)


def _with_tokenizer(place: str, options: Mapping[str, Any], tokenizer: PathLike | None) -> Weights:
    return Weights(place, options if tokenizer is None else {**options, "tokenizer": os.fspath(tokenizer)})


def _concept_encoder(
    model: PathLike | Run | Weights | Encoder, device: str, tokenizer: PathLike | None
) -> tuple[ConceptEncoder, str]:
    """An encoder with concepts, and its name; raises for others, and names their kind."""
    subject = _subject(model, device, tokenizer)
    if isinstance(subject.encoder, ConceptEncoder):
        if not subject.encoder.backbone.registers:
            raise UserError(
                f"{subject.model.name} has no concept tokens, although a file of concepts is next to it; use the "
                "weights that belong to that file"
            )
        if subject.encoder.localization is None:
            raise UserError(
                f"{subject.model.name} was trained with method.reconstruction=null, so it has no concept maps (only "
                "reconstruction trains them); use a run with reconstruction"
            )
        return subject.encoder.eval(), subject.model.name
    if subject.run is not None and not is_finetuned(subject.run) and not is_aligned(subject.run):
        kind = f"a run of {open_run(subject.run).recipe.method.name}"
    else:
        kind = subject.encoder.backbone.architecture.name
    raise UserError(
        f"{subject.model.name} ({kind}) has no concepts; train a model that has them with "
        "`asterism pretrain stellar --data DATA`, or give a STELLAR checkpoint"
    )


def _written(result: Result, folder: Path) -> Result:
    return on_first_process(lambda: result.write(folder))


def _data_of(subject: _Subject, data: PathLike | None) -> str:
    """The requested data, else the data the run was trained on."""
    if data is not None:
        return os.fspath(data)
    if subject.run is None:
        raise UserError("no data given: use --data with a folder, shards, or a name from `asterism list datasets`")
    return open_run(subject.run).data_path()


def _evaluate_task(run: Path, data: PathLike | None, split: str | None, out: PathLike | None, device: str) -> Result:
    """The task's own metric of a fine-tuned run."""
    from asterism.finetuning.evaluating import evaluate_task
    from asterism.finetuning.run import open_finetuned

    opened = open_finetuned(run)
    place = opened.data_path() if data is None else os.fspath(data)
    result = evaluate_task(opened, place, split, _device(device))
    return _written(result, opened.path / "eval" if out is None else Path(out))


def _everything(path: str) -> tuple[Source, str | None]:
    """All splits of the data as one source, and the name for all of them."""
    try:
        return open_source(path, EVERYTHING), EVERYTHING
    except UnknownSplit:
        return open_source(path), None


def _device(name: str) -> torch.device:
    """The device of this name; "auto" is the first available of CUDA, MPS and CPU. Each process gets its own GPU."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, here in present.items() if here)
    if name not in present:
        raise unknown("device", name, ["auto", *present])
    if not present[name]:
        raise UserError(f"device {name!r} is not available to torch on this machine; choose cpu or auto")
    return torch.device(name, int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)


def _path_of(run: PathLike | Run) -> Path:
    return run.path if isinstance(run, Run) else Path(run)


def _recipe_and_overrides(
    method: str | Mapping[str, Any] | None,
    data: PathLike | Mapping[str, Any] | None,
    recipe: PathLike | None,
    overrides: Sequence[str],
    settings: dict[str, Any],
) -> tuple[str | None, list[str]]:
    """The name of the recipe, if one is given, and all changes to it as overrides."""
    if isinstance(method, Mapping):  # a section like any other
        settings["method"], method = method, None
    if data is not None:
        settings["data"] = data if isinstance(data, Mapping) else {"path": os.fspath(data)}
    if method is not None and recipe is not None:
        raise _no_recipe()
    named = recipe if recipe is not None else method
    return None if named is None else os.fspath(named), [*_as_overrides(settings), *overrides]


def _init(init: PathLike | Weights | None) -> Init | None:
    from asterism.train.processes import Init

    return None if init is None else Init(*_place_and_options(init))


def _no_recipe() -> UserError:
    return UserError("give one method or recipe, for example `asterism pretrain dino`; see `asterism list methods`")


def _as_overrides(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested mappings and dotted keys as command-line overrides."""
    overrides = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            overrides += _as_overrides(value, f"{prefix}{key}.")
        else:
            overrides.append(_override(prefix + key, value))
    return overrides


def _override(key: str, value: Any) -> str:
    return f"{key}={json.dumps(value, default=os.fspath)}"  # JSON is valid YAML
