"""What a weights file says about its network, checked before anything is built from it.

A file comes from anywhere. Its metadata may choose among the networks that Asterism itself exports, within sizes that
its tensors confirm, and nothing else: timm's other arguments can name addresses to download from or files to open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.inputs import parse_json
from asterism.nn.backbone import Pooling
from asterism.nn.initialisation import Init
from asterism.nn.positions import Positions, Resampling
from asterism.nn.safetensors_file import METADATA_KEY
from asterism.nn.timm_arguments import Depth, TimmArguments
from asterism.ranges import Count, CountFromZero, Few, Number, Pixels, Positive

_SLACK = 1 << 20  # numbers that a module may have more than its file

Name = Annotated[str, Field(min_length=1, max_length=200)]
Mean = tuple[Number, Number, Number]
Std = tuple[Positive, Positive, Positive]


class ArchitectureDescription(Config):
    """An `asterism.nn.backbone.Architecture`."""

    name: Name
    arguments: TimmArguments = TimmArguments()
    resampling: Resampling = "antialiased"
    layer_norm_eps: Positive | None = None
    positions: Positions = "learned"
    init: Init = "timm"
    pooling: Pooling | None = None


class EncoderFile(Config):
    """The metadata of an encoder file."""

    architecture: ArchitectureDescription
    mean: Mean
    std: Std
    image_size: Pixels
    step: CountFromZero | None


class DecoderDescription(Config):
    """The sizes of a decoder of concepts or codes."""

    in_dim: Count
    dim: Count
    depth: Depth
    heads: Few
    mlp_ratio: Positive


class PatchTokenizerDescription(Config):
    """The metadata of a tokenizer that `asterism pretrain vq` trained."""

    kind: Literal["patches"]
    architecture: ArchitectureDescription
    vocabulary: Count
    decoder: DecoderDescription
    mean: Mean
    std: Std


class VqganDescription(Config):
    """The sizes of a MaskGIT-VQGAN."""

    kind: Literal["maskgit-vqgan"]
    width: Count
    multipliers: tuple[Few, ...] = Field(min_length=1, max_length=16)
    blocks: Few
    channels: Count
    vocabulary: Count


Tokenizer = Annotated[PatchTokenizerDescription | VqganDescription, Field(discriminator="kind")]


class PixelsDescription(Config):
    """A decoder to pixels."""

    target: Literal["pixels"]
    decoder: DecoderDescription
    patch_size: Pixels


class CodesDescription(Config):
    """A decoder to a tokenizer's codes."""

    target: Literal["codes"]
    decoder: DecoderDescription
    vocabulary: Count
    image_size: Pixels | None
    tokenizer: Tokenizer | None


class ConceptsFile(Config):
    """The metadata of the file of an encoder's concepts."""

    temperature: Positive | None
    reconstruction: Annotated[PixelsDescription | CodesDescription, Field(discriminator="target")] | None


class TokenizerFile(Config):
    """The metadata of a tokenizer's file."""

    tokenizer: Tokenizer


def description_in(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Our description of the network in a file's metadata, not yet checked."""
    try:
        values = parse_json(metadata[METADATA_KEY])
    except KeyError:
        raise UserError(f"{path} has no metadata of Asterism; it was not written by it") from None
    except ValueError as error:
        raise UserError(f"{path} has damaged metadata: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} has damaged metadata: a {type(values).__name__} instead of a mapping")
    return values


def checked(kind: type[Config], values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The description, if it is one that this version of Asterism writes."""
    try:
        kind.check_json(values)
        return values
    except UserError as error:
        problem = str(error).replace("\n", "; ")
        raise UserError(
            f"{path} was damaged, or written by another version of Asterism; its metadata: {problem}"
        ) from None


def check_fits(build: Callable[[], nn.Module | None], tensors: Mapping[str, Tensor], path: str | Path) -> None:
    """Refuse tensors that are not finite, and a module that is much larger than its tensors, before memory is reserved
    for it.

    The exact shapes are compared when the tensors are loaded, with messages that name the first difference.
    """
    check_finite(tensors, path)
    try:
        with torch.device("meta"):
            module = build()
    except UserError:  # sizes that do not fit together: building it for real says so in its own words
        return
    needed = 0 if module is None else sum(tensor.numel() for tensor in module.state_dict().values())
    held = sum(tensor.numel() for tensor in tensors.values())
    if needed > 2 * held + _SLACK:
        raise UserError(f"{path} describes a network of {needed:,} numbers, but holds only {held:,}")


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path) -> None:
    """Name the first tensor that the described model does not have, or that has another shape."""
    for name in sorted({*tensors, *expected}):
        found, needed = (
            f"of shape {list(each[name].shape)}" if name in each else "absent" for each in (tensors, expected)
        )
        if found != needed:
            raise UserError(
                f"{file} does not fit the model that it describes: {name} is {needed} there, but {found} here"
            )


def check_finite(tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Refuse weights that are NaN or infinite: features would be, too, and scores of them are still numbers."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
            raise UserError(
                f"{name} of {source} has values that are not finite (NaN or infinity), so its features would be "
                "useless; take an earlier checkpoint, or the original file"
            )
