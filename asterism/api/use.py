"""Commands that use a trained model: predictions, embeddings, search, concepts, masks, and files for other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asterism.api.parameters import (
    AnyModel,
    BatchSize,
    Device,
    Images,
    IndexData,
    ModelWithConcepts,
    Overrides,
    OverwriteFiles,
    PathLike,
    Read,
    Tokenizer,
    changes_of,
)
from asterism.errors import UserError
from asterism.inputs import output_path

if TYPE_CHECKING:
    from asterism.images.pictures import Picture
    from asterism.index.write import Written
    from asterism.models import Weights
    from asterism.nn.encoder import Encoder
    from asterism.tools.export.export import Exported
    from asterism.tools.predict import PredictedFolder
    from asterism.tools.search import Found
    from asterism.tools.segment import SegmentedFolder
    from asterism.tools.track import Tracked
    from asterism.train.run import Run


def predict(
    model: Annotated[PathLike | Run, typer.Argument(metavar="RUN", help="A fine-tuned run.")],
    images: Annotated[
        PathLike,
        typer.Option("--images", "-i", metavar="PLACE", help="A folder of images, one image, or a video."),
    ],
    out: Annotated[
        PathLike, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")
    ] = "predictions",
    *,
    batch_size: BatchSize = 16,
    overwrite: OverwriteFiles = False,
    device: Device = "auto",
) -> PredictedFolder:
    """Write what a fine-tuned run predicts for new images: files for programs, and drawn pictures.

    Every image with its prediction is drawn to drawings/. Classification also writes predictions.csv and
    predictions.json with the probabilities of the five most probable classes; other tasks write masks or boxes.

    In Python, `asterism.load(run).predict("photo.jpg")` is one prediction.

    Examples:

        asterism predict runs/flowers --images new/ --out predictions
        asterism predict runs/flowers --images film.mp4 --out frames
    """
    from asterism.finetuning.model import load_model
    from asterism.models import device_named, path_of
    from asterism.tools.output_folder import check_folder
    from asterism.tools.predict import predict_images

    folder = check_folder(output_path(out), overwrite)
    loaded = load_model(path_of(model))
    loaded.to(device_named(device))
    return predict_images(loaded, Path(images), folder, batch_size=batch_size)


def embed(
    model: AnyModel,
    data: Annotated[
        PathLike | None,
        typer.Option(
            "--data", "-d", metavar="DATA", help="A folder of images, tar shards, or a name: see `list datasets`."
        ),
    ] = None,
    out: Annotated[
        PathLike, typer.Option("--out", "-o", metavar="FILE", help="A .parquet or .npz file.")
    ] = "embeddings.parquet",
    *,
    split: Annotated[str | None, typer.Option(metavar="NAME", help="Only this split of the data.")] = None,
    dense: Annotated[bool, typer.Option("--dense", help="Also write one embedding per patch.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    batch_size: BatchSize = 64,
    device: Device = "auto",
) -> Written:
    """Write one vector per image, with its file name and, if known, its label.

    All splits of the data are embedded unless --split selects one. (Generated scenes are endless: for these it is the
    training split.) A model with concepts also writes these and their maps, for `asterism concepts --index`. Unreadable
    images are skipped and listed in a file next to it.

    In Python, the vector of an image is `load(model).encode(image).cls`.

    Examples:

        asterism embed runs/first --data photos/ --out photos.parquet
        asterism embed runs/first --data photos/ --out photos.npz --dense
    """
    from asterism.data.sources.open import open_everything, open_source
    from asterism.index.write import check_target, write_embeddings
    from asterism.models import open_model

    target = check_target(output_path(out), overwrite)
    subject = open_model(model, device)
    path = subject.data(data)
    source, split = open_everything(path) if split is None else (open_source(path, split), split)
    return write_embeddings(
        subject.encoder,
        source,
        target,
        subject.model,
        dense=dense,
        batch_size=batch_size,
        opened=(str(Path(path).resolve()) if Path(path).exists() else path, split),
    )


def concepts(
    model: ModelWithConcepts,
    images: Images,
    out: Annotated[
        PathLike, typer.Option("--out", "-o", metavar="DIR", help="Folder for the page and pictures.")
    ] = "concepts",
    *,
    text: Annotated[
        str | Sequence[str],
        typer.Option(
            "--text",
            "-t",
            metavar="WORDS",
            help="What to find in the images, with an aligned model; may be repeated.",
        ),
    ] = (),
    index: Annotated[
        PathLike | None,
        typer.Option(
            "--index",
            "-i",
            metavar="FILE",
            help="Images embedded with the same model: shows the nearest ones for each concept.",
        ),
    ] = None,
    data: IndexData = None,
    neighbours: Annotated[int, typer.Option(min=1, help="Images shown per concept.")] = 5,
    tokenizer: Tokenizer = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing pictures in --out.")] = False,
    device: Device = "auto",
) -> Path:
    """Show which concepts a model finds in images, and where.

    Draws the map of every concept over each image, and the image reconstructed from its concepts. With an index written
    by `asterism embed`, also shows the nearest images for each concept. With --text and a model of `asterism align`,
    shows which concepts the words mean, and where. Concepts are numbered from 0.

    In Python, images are anything that `encode` takes. Returns the path of the page.

    Examples:

        asterism concepts runs/first cat.jpg dog.jpg
        asterism embed runs/first --data photos/ --out photos.parquet
        asterism concepts runs/first cat.jpg --index photos.parquet --out cat
        asterism concepts runs/first-text photo.jpg --text "the handle of the cup"
    """
    from asterism.images.pictures import as_list
    from asterism.models import open_concept_model
    from asterism.tools.concepts import open_collection, write_concepts  # imports the drawing libraries
    from asterism.tools.output_folder import check_folder

    pictures = as_list(images)
    folder = check_folder(output_path(out), overwrite)
    encoder, name = open_concept_model(model, device, tokenizer)
    words = [text] if isinstance(text, str) else list(text)
    place = None if data is None else os.fspath(data)
    collection = None if index is None else open_collection(Path(index), place, encoder, neighbours)
    return write_concepts(encoder, pictures, folder, name, collection, words)


def _tokens(text: str) -> list[int]:
    """Concept numbers, from "3,5"."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"cannot read --drop {text}; give concept numbers, for example 3,5") from None


def _moves(texts: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Concepts and their shifts down and right, from "3:-1,2"."""
    moves: dict[int, tuple[int, int]] = {}
    for text in texts:
        token, _, shift = text.partition(":")
        try:
            down, right = (int(part) for part in shift.split(","))
            moves[int(token)] = (down, right)
        except ValueError:
            raise UserError(f"cannot read --move {text}; give TOKEN:DY,DX in patches, for example 3:-1,2") from None
    if len(moves) < len(texts):
        raise UserError(f"--move {' --move '.join(texts)} moves a concept twice; give one --move per concept")
    return moves


def reconstruct(
    model: ModelWithConcepts,
    images: Images,
    out: Annotated[
        PathLike, typer.Option("--out", "-o", metavar="DIR", help="Folder for the pictures.")
    ] = "reconstructions",
    *,
    drop: Annotated[
        Sequence[int],
        typer.Option(metavar="TOKEN,...", help="Leave these concepts out; the others share their area."),
        Read(_tokens),
    ] = (),
    move: Annotated[
        Mapping[int, tuple[int, int]] | None,
        typer.Option(metavar="TOKEN:DY,DX", help="Move a concept down and right, in patches (negative: up, left)."),
        Read(_moves, repeated=True),
    ] = None,
    swap: Annotated[
        Picture | None, typer.Option(metavar="OTHER", help="Replace each IMAGE's concepts by those of this image.")
    ] = None,
    tokenizer: Tokenizer = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing pictures in --out.")] = False,
    device: Device = "auto",
) -> list[Path]:
    """Reconstruct images from their concepts, unchanged or edited.

    Writes NAME.reconstruction.png and, with an edit, NAME.edited.png. `asterism concepts` shows the number of each
    concept. Edits can be combined: first --swap, then --drop, then every --move.

    In Python, images are anything that `encode` takes. Returns the files. For tensors instead of files:
    `encoder.reconstruct(features.sparse, features.where)` and `asterism.ops.concept_edits`.

    Examples:

        asterism reconstruct runs/first cat.jpg --out made
        asterism reconstruct runs/first cat.jpg --drop 3,5
        asterism reconstruct runs/first cat.jpg --move 3:0,2 --move 5:-1,0
        asterism reconstruct runs/first cat.jpg --swap dog.jpg
    """
    from asterism.images.pictures import as_list
    from asterism.models import open_concept_model
    from asterism.tools.output_folder import check_folder
    from asterism.tools.reconstruct import Edit, Move, write_reconstructions  # imports the drawing libraries

    pictures = as_list(images)
    folder = check_folder(output_path(out), overwrite)
    encoder, _ = open_concept_model(model, device, tokenizer)
    moves = tuple(Move(token, down, right) for token, (down, right) in (move or {}).items())
    return write_reconstructions(encoder, pictures, folder, Edit(swap, tuple(drop), moves))


def track(
    model: AnyModel,
    video: Annotated[
        PathLike, typer.Option("--video", "-v", metavar="DIR", help="The frames, in the order of their names.")
    ],
    mask: Annotated[
        PathLike, typer.Option("--mask", "-m", metavar="IMAGE", help="The objects of the first frame, one colour each.")
    ],
    out: Annotated[
        PathLike, typer.Option("--out", "-o", metavar="DIR", help="Folder for masks and overlays.")
    ] = "tracked",
    *,
    overwrite: OverwriteFiles = False,
    device: Device = "auto",
    overrides: Overrides = (),
    **settings: Any,
) -> Tracked:
    """Track objects through a video, from a mask of its first frame. Nothing is trained.

    The mask is a PNG of the frame's size: black is background, every other value or colour is an object. Writes
    masks/FRAME.png with the same values, overlays/FRAME.jpg, an animation, and tracking.json with the confidence in
    each object and the frames in which it is lost. Settings: short_side, context, topk, radius, temperature,
    lost_below.

    In Python, settings are keywords, for example `radius=8`. The result's `lost` names the frames in which an object is
    lost.

    Examples:

        asterism track runs/first --video frames/ --mask first.png --out tracked
        asterism track runs/first --video frames/ --mask first.png radius=8 short_side=320
    """
    from asterism.config import with_overrides
    from asterism.models import open_model
    from asterism.tools.output_folder import check_folder
    from asterism.tools.track import TrackingObjects, track_video

    changes = with_overrides({"first_mask": "shares"}, changes_of(settings, overrides))
    folder, config = check_folder(output_path(out), overwrite), TrackingObjects.parse(changes)
    return track_video(open_model(model, device).encoder, Path(video), Path(mask), folder, config)


def segment(
    model: AnyModel,
    examples: Annotated[
        PathLike, typer.Option("--examples", "-e", metavar="DIR", help="images/NAME.jpg and masks/NAME.png.")
    ],
    images: Annotated[
        PathLike, typer.Option("--images", "-i", metavar="DIR", help="The images to segment: a folder or one file.")
    ],
    out: Annotated[
        PathLike, typer.Option("--out", "-o", metavar="DIR", help="Folder for masks and overlays.")
    ] = "segmented",
    *,
    head: Annotated[
        str,
        typer.Option(metavar="auto|vote|trained", help="What labels patches; auto: the better one on the examples."),
    ] = "auto",
    overwrite: OverwriteFiles = False,
    device: Device = "auto",
    overrides: Overrides = (),
    **settings: Any,
) -> SegmentedFolder:
    """Segment images from a few labelled examples. The network is not trained.

    Examples are images/NAME.jpg with masks/NAME.png, or NAME.jpg next to NAME.png. A mask holds a class number at every
    pixel: 0 is the background, 255 is ignored. Patches are labelled by a vote of the nearest patches of the examples,
    or by a small head trained on them. Each example is also segmented with the help of the others: this chooses the
    better way and says which IoU to expect. Settings: balance, k, temperature, short_side.

    In Python, settings are keywords. The result's `estimate` has the IoU to expect.

    Examples:

        asterism segment runs/first --examples labelled/ --images new/ --out segmented
        asterism segment runs/first --examples labelled/ --images photo.jpg --head vote k=10
    """
    from asterism.config import with_overrides
    from asterism.models import open_model
    from asterism.tools.output_folder import check_folder
    from asterism.tools.segment import Segmenting, segment_images

    folder = check_folder(output_path(out), overwrite)
    config = Segmenting.parse(with_overrides({"head": head}, changes_of(settings, overrides)))
    return segment_images(open_model(model, device).encoder, Path(examples), Path(images), folder, config)


def search(
    model: Annotated[
        PathLike | Run | Weights | Encoder,
        typer.Argument(metavar="MODEL", help="The run folder or weights that the index was made with."),
    ],
    index: Annotated[
        PathLike, typer.Option("--index", "-i", metavar="FILE", help="The collection, as `asterism embed` wrote it.")
    ],
    queries: Annotated[
        PathLike | Sequence[PathLike],
        typer.Option("--query", "-q", metavar="IMAGE", help="The image to look for; may be repeated."),
    ] = (),
    out: Annotated[
        PathLike | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The contact sheet: an .html or .png file.  [default: neighbours.html, or the next free number]",
        ),
    ] = None,
    *,
    text: Annotated[
        str | Sequence[str],
        typer.Option(
            "--text", "-t", metavar="SENTENCE", help="What to look for, with an aligned model; may be repeated."
        ),
    ] = (),
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Images shown per query.")] = 12,
    data: IndexData = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing sheet.")] = False,
    device: Device = "auto",
) -> Found:
    """Find the images of a collection that are most similar to a query, and draw a contact sheet.

    A query is an image or, with a model of `asterism align`, a sentence. The index is a file that `asterism embed`
    wrote with the same model, or with the encoder that was aligned.

    In Python, returns the neighbours by query.

    Examples:

        asterism embed runs/first --data photos/ --out photos.parquet
        asterism search runs/first --index photos.parquet --query a.jpg
        asterism search runs/first --index photos.parquet -q a.jpg -q b.jpg --out sheet.png
        asterism search runs/first-text --index photos.parquet --text "two dogs on a beach"
    """
    from asterism.models import open_model
    from asterism.tools.search import check_sheet, search_images, usual_sheet

    paths = [Path(query) for query in ([queries] if isinstance(queries, str | os.PathLike) else queries)]
    sentences = [text] if isinstance(text, str) else list(text)
    if not paths and not sentences:
        raise UserError("give at least one query: --query IMAGE or --text SENTENCE")
    sheet = usual_sheet(overwrite) if out is None else check_sheet(output_path(out), overwrite)
    place = None if data is None else os.fspath(data)
    encoder = open_model(model, device).encoder
    return search_images(encoder, Path(index), [*paths, *sentences], sheet, count=count, data=place)


def export(
    model: AnyModel,
    to: Annotated[str, typer.Option("--to", metavar="onnx|hf|timm|safetensors", help="The format.")],
    out: Annotated[PathLike, typer.Option("--out", "-o", metavar="DIR", help="The new folder.")] = "exported",
    *,
    dtype: Annotated[
        str, typer.Option(metavar="float32|float16|bfloat16", help="Precision of the weights.")
    ] = "float32",
    license: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="For the model card, for example apache-2.0.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in --out.")] = False,
) -> Exported:
    """Write a model for other programs: ONNX runtimes, Hugging Face transformers, timm.

    onnx takes images in [0, 1] and normalises them, for any number of images and, for ViTs, of any size.
    hf and timm folders open with AutoModel and timm.create_model. safetensors is our own file. The export is opened
    again and compared with the model before it is put in place. It includes a model card with data, method and scores.

    In Python, returns the files and the largest difference from the model.

    Examples:

        asterism export runs/first --to onnx --out first-onnx
        asterism export runs/first --to hf --out first-hf --license apache-2.0
        asterism export runs/first --to onnx --dtype float16 --out first-half
    """
    from asterism.models import open_model, place_of
    from asterism.nn.encoder import Encoder
    from asterism.tools.export.export import check_out, dtype_named, export_encoder, target_named
    from asterism.tools.export.model_card import origin_of

    target, precision = target_named(to), dtype_named(dtype)
    source = None if isinstance(model, Encoder) else Path(place_of(model).place)
    folder = check_out(output_path(out), overwrite, source)
    subject = open_model(model, "auto" if isinstance(model, Encoder) else "cpu")
    origin = origin_of(subject.model.name, subject.run)
    return export_encoder(subject.encoder, target, folder, precision, origin, license)
