"""What a model is: a run, a weights file, a folder, a name such as `nano`, `pixels`, or an encoder in memory.

A satellite adds a kind of model by an entry point of the group `asterism.models`. Its name is that of the file that
holds the model, NAME.safetensors, and its function `(place, **options)` returns the model in this file or folder, or
None if there is none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asterism.errors import UserError, unknown
from asterism.finetuning.model import load_model, model_file
from asterism.finetuning.run import MODEL_NAME
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.pixel_baseline import pixel_encoder
from asterism.nn.weights.description import weights_options
from asterism.nn.weights.load import load_encoder
from asterism.nn.weights.metadata import check_finite
from asterism.nn.weights.packaged import as_place, is_packaged
from asterism.plugins import plugins
from asterism.train.run import Run, is_pretrained, open_run
from asterism.types import Model

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Weights:
    """Weights by their place, and what their file does not say; made by `weights`, loaded where a model is expected."""

    place: str
    options: Mapping[str, Any]


AnyModel = PathLike | Run | Weights | Encoder


def weights(model: PathLike, **options: Any) -> Weights:
    """A model for the commands, with the options of `load`: `evaluate(weights("w.pth", heads=4), …)`.

    Unlike `load`, it keeps the name of the file for results, and also fits `pretrain(init=…)`.
    """
    weights_options(**options)  # refuses impossible values at once
    return Weights(_place(model), options)


def load(model: PathLike | Run | Weights, **options: Any) -> Encoder:
    r"""Load the encoder of a run, a weights file, a folder of transformers or timm, a timm name, or hf:OWNER/MODEL.

    `nano` and `nano-stellar` are in the package (`asterism list models`); a file or folder of this name is `./nano`.

    That of a fine-tuned run also predicts: `load(run).predict("photo.jpg")`. That of an aligned run also reads:
    `load(run).encode_text("two dogs")` is in the same space as `load(run).encode("photo.jpg").aligned`.

    docs/weights.md lists the families of files. The options say what a file may not: heads of the attention,
    mean and std of its pixels in [0, 1], image_size in pixels, eps of its LayerNorms, activation of its MLPs, and
    pooling (class, mean or attention), which makes an image's vector. They take precedence over settings next to the
    file. name is the timm model that the weights belong to and gives all of them. What nothing states is guessed, and
    one warning names every guess. keys rename tensors of a file with other names than a known family's, as regular
    expressions: `load("theirs.pth", keys={r"layers\.(\d+)": r"blocks.\1"})`.

    family: read the file as this family instead of detecting it. which: teacher (the default) or student, if it
    contains both. tokenizer: the file or `vq` run whose codes a STELLAR decoder predicts; decoder_heads: of that
    decoder.
    """
    source = place_of(model)
    given = {**source.options, **{word: value for word, value in options.items() if value is not None}}
    if is_packaged(source.place):
        return load_encoder(source.place, **given)
    place = Path(source.place)
    if not given and _may_hold(place, MODEL_NAME) and model_file(place) is not None:
        return load_model(place)
    for name, plugin in plugins("models").items():
        if _may_hold(place, f"{name}.safetensors"):
            found: Encoder | None = plugin.load()(place, **given)
            if found is not None:
                return found
    return load_encoder(source.place, **given)


def model_files() -> tuple[str, ...]:
    """Names of files next to `encoder.safetensors` that make a model of it."""
    return (MODEL_NAME, *(f"{name}.safetensors" for name in plugins("models")))


def _may_hold(place: Path, name: str) -> bool:
    """Whether a place may hold the model of a file with this name. Other places are not read."""
    return (place / name).is_file() or place.name == name


def place_of(model: PathLike | Run | Weights) -> Weights:
    if isinstance(model, Weights):
        return model
    return Weights(_place(model.path if isinstance(model, Run) else model), {})


def _place(model: PathLike) -> str:
    """Text is a path or a name; anything else is a path."""
    return model if isinstance(model, str) else as_place(model)


def path_of(run: PathLike | Run) -> Path:
    return run.path if isinstance(run, Run) else Path(run)


@dataclass(frozen=True)
class Subject:
    """An encoder and where it came from."""

    encoder: Encoder
    model: Model
    run: Path | None  # its run folder, if it has one

    def data(self, given: PathLike | None) -> str:
        """The given data, else the data that the run was trained on."""
        if given is not None:
            return os.fspath(given)
        if self.run is None:
            raise UserError("no data given: use --data with a folder, shards, or a name from `asterism list datasets`")
        return open_run(self.run).data_path()


def open_model(model: AnyModel, device: str = "auto", tokenizer: PathLike | None = None) -> Subject:
    """The encoder of a model on a device."""
    if isinstance(model, Encoder):
        if tokenizer is not None:
            raise UserError("a loaded encoder already has its tokenizer; pass tokenizer to asterism.load instead")
        encoder = model if device == "auto" else model.to(device_named(device))
        check_finite(encoder.state_dict(), "this encoder")
        return Subject(encoder, Model(type(model).__name__, encoder.step), None)
    where, source = device_named(device), place_of(model)
    if source.place == "pixels":
        if source.options:
            raise UserError("pixels are not a network and take no weights options; leave them out")
        encoder = pixel_encoder()
    else:
        encoder = load(source, tokenizer=None if tokenizer is None else os.fspath(tokenizer))
    run = Path(source.place)
    trained = not is_packaged(source.place) and (run / "config.yaml").is_file()
    return Subject(encoder.to(where), Model(source.place, encoder.step), run if trained else None)


def open_concept_model(
    model: AnyModel, device: str = "auto", tokenizer: PathLike | None = None
) -> tuple[ConceptEncoder, str]:
    """An encoder with concepts, and its name; raises for others, and names their kind."""
    subject = open_model(model, device, tokenizer)
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
    if subject.run is not None and is_pretrained(subject.run):
        kind = f"a run of {open_run(subject.run).recipe.method.name}"
    else:
        kind = subject.encoder.backbone.architecture.name
    raise UserError(
        f"{subject.model.name} ({kind}) has no concepts; take nano-stellar, train a model that has them with "
        "`asterism pretrain stellar --data DATA`, or give a STELLAR checkpoint"
    )


def device_named(name: str) -> torch.device:
    """The device of this name; "auto" is the first available of CUDA, MPS and CPU. Each process gets its own GPU."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, here in present.items() if here)
    if name not in present:
        raise unknown("device", name, ["auto", *present])
    if not present[name]:
        raise UserError(f"device {name!r} is not available to torch on this machine; choose cpu or auto")
    return torch.device(name, int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)
