"""What the cases are made of: photos, weights, a finished run and an index, each made once per campaign."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from asterism.images.masks import save_mask
from asterism.nn.concepts import concepts_file
from tests.campaigns.campaign import copied
from tests.campaigns.processes import execute
from tests.concept_samples import concept_encoder
from tests.data.clips import frame_and_mask, write_frames
from tests.evals.samples import small_encoder, write_colours
from tests.extras.words.tiny import captions as write_captions

SMALL = [  # a network and a length that a case can afford
    "backbone.image_size=16",
    "backbone.patch_size=8",
    "backbone.dim=16",
    "backbone.depth=1",
    "backbone.heads=2",
    "trainer.steps=2",
    "trainer.batch_size=4",
    "data.workers=0",
    "monitor.tensorboard=false",
]
DINO = ["dino", *SMALL, "method.out_dim=32", "method.local_views=0"]

FINETUNING = [  # on `labelled`, with the two measurements that choose the best weights
    "trainer.steps=2",
    "trainer.batch_size=4",
    "data.workers=0",
    "monitor.tensorboard=false",
    "checkpoint.every_steps=1",
    "validation.share=0.25",
    "validation.every_epochs=0.3",
    "optim.lr=0.5",
    "optim.warmup_steps=0",
]


ALIGNING = [  # on `captions`
    "text.dim=16",
    "text.depth=1",
    "text.heads=2",
    "data.workers=0",
    "data.held_out=0.2",
    "trainer.steps=2",
    "trainer.batch_size=4",
    "trainer.devices=1",
    "checkpoint.every_steps=1",
    "monitor.tensorboard=false",
]


def photos(folder: Path) -> Path:
    """Six pictures in three classes."""
    return copied(_photos(), folder)


def labelled(folder: Path) -> Path:
    """Twelve pictures in three classes, enough to hold some out."""
    return copied(_labelled(), folder)


def weights(file: Path) -> Path:
    """A small encoder without concepts."""
    return copied(_home("weights.safetensors", small_encoder().save), file)


def concept_weights(file: Path) -> Path:
    """A small encoder with concepts and a decoder, which are in a second file."""
    made = _home("model.safetensors", concept_encoder().save)
    copied(concepts_file(made), concepts_file(file))
    return copied(made, file)


def run(folder: Path) -> Path:
    """A finished run of two steps on `photos`, with checkpoints of both and the result of an evaluation."""
    return copied(_run(), folder)


def finetuned(folder: Path) -> Path:
    """A finished fine-tuned run of two steps on `labelled`, with both checkpoints and the result of an evaluation."""
    return copied(_finetuned(), folder)


def captions(folder: Path) -> Path:
    """Eight pictures, and `captions.jsonl` about them."""
    return copied(_captions(), folder)


def aligned(folder: Path) -> Path:
    """A finished aligned run of two steps on `captions`, with both checkpoints and the result of an evaluation."""
    return copied(_aligned(), folder)


def frames(folder: Path) -> Path:
    """Two frames of a video with two objects."""
    return write_frames(folder, 2)


def mask(file: Path) -> Path:
    """The objects of the first frame."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_mask(frame_and_mask(0)[1], file)
    return file


def examples(folder: Path) -> Path:
    """A frame and its mask, as `segment` wants them."""
    write_frames(folder, 1)
    mask(folder / "00000.png")
    return folder


def index(file: Path, model: Path, data: Path) -> Path:
    """`data` embedded with `model`."""
    words = ["embed", str(model.resolve()), "--data", str(data.resolve()), "--out", str(file.resolve())]
    ended = execute(words, _place())
    assert ended.code == 0, ended.errors
    return file


@functools.cache
def _place() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="asterism-materials-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = folder / "here"
    place.mkdir()
    return place


@functools.cache
def _photos() -> Path:
    return write_colours(_place() / "photos", 2, size=(16, 16))


@functools.cache
def _labelled() -> Path:
    return write_colours(_place() / "labelled", 4, size=(16, 16))


def _home(name: str, save) -> Path:  # type: ignore[no-untyped-def]
    path = _place() / name
    return path if path.exists() else save(path, step=7)


@functools.cache
def _run() -> Path:
    data = str(_photos())
    return _made(
        "run",
        ["pretrain", *DINO, "--data", data, "--out", "run", "checkpoint.every_steps=1"],
        ["evaluate", "run", "--data", data, "knn.k=2"],
    )


@functools.cache
def _finetuned() -> Path:
    data, source = str(_labelled()), str(_home("weights.safetensors", small_encoder().save))
    return _made(
        "finetuned",
        ["finetune", source, "--task", "classify", "--data", data, "--out", "finetuned", *FINETUNING],
        ["evaluate", "finetuned", "--data", data],
    )


@functools.cache
def _captions() -> Path:
    return write_captions(_place() / "captions", each=2).parent


@functools.cache
def _aligned() -> Path:
    data, source = str(_captions() / "captions.jsonl"), str(_home("weights.safetensors", small_encoder().save))
    return _made(
        "aligned",
        ["align", source, "--data", data, "--out", "aligned", *ALIGNING],
        ["evaluate", "aligned", "--data", data, "--protocols", "text-retrieval"],
    )


def _made(name: str, *commands: list[str]) -> Path:
    for words in commands:
        ended = execute(words, _place(), seconds=600)
        assert ended.code == 0, ended.problem or ended.errors
    return _place() / name
