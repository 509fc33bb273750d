"""Tokenizer files: our own, with a description in their metadata, and the public MaskGIT-VQGAN weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, rebuild_backbone
from asterism.nn.reconstruction import ConceptDecoder
from asterism.nn.safetensors_file import METADATA_KEY, write_safetensors
from asterism.nn.tokenizers.base import Tokenizer
from asterism.nn.tokenizers.patches import PatchCodes, PatchTokenizer
from asterism.nn.tokenizers.vqgan import MaskGitVqgan
from asterism.nn.weights.checkpoint_file import CheckpointFile, read_checkpoint
from asterism.nn.weights.metadata import TokenizerFile, check_fits, check_tensors, checked, description_in

FILE_NAME = "tokenizer.safetensors"
_PREFIX = "tokenizer."  # also that of a tokenizer inside an official STELLAR checkpoint


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write a tokenizer to a file that `load_tokenizer` can read on its own."""
    tensors = {_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in tokenizer.state_dict().items()}
    write_safetensors(path, tensors, tokenizer.describe())


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a `vq` run, of a file that `save_tokenizer` wrote, or of the public MaskGIT-VQGAN weights."""
    path = Path(source)
    if path.is_dir():
        path = path / FILE_NAME
        if not path.is_file():
            raise UserError(f"{source} contains no {FILE_NAME}; give a run of `asterism pretrain vq`, or a weight file")
    if not path.exists():
        raise UserError(
            f"no tokenizer found at {source}; train one on your images with `asterism pretrain vq`, or give the file "
            "of the public MaskGIT-VQGAN weights (maskgit-vqgan-imagenet-f16-256.bin)"
        )
    file = read_checkpoint(path)
    description = _description(file)
    check_fits(lambda: rebuild_tokenizer(description), file.tensors, path)
    tokenizer = rebuild_tokenizer(description)
    load_tensors(tokenizer, _without_prefix(file.tensors), path)
    return tokenizer.requires_grad_(False).eval()


def rebuild_tokenizer(description: Mapping[str, Any]) -> Tokenizer:
    """The described tokenizer; its weights have yet to be loaded."""
    values = dict(description)
    kind = values.pop("kind", None)
    if kind == "maskgit-vqgan":
        with torch.device("meta"):  # most of its 54 million weights are about to be replaced
            return MaskGitVqgan(**values)
    backbone = rebuild_backbone(Architecture(**values["architecture"]))
    decoder = ConceptDecoder(**values["decoder"])
    codes = PatchCodes(backbone.dim, backbone.patch_size, values["vocabulary"], decoder)
    return PatchTokenizer(backbone, codes, tuple(values["mean"]), tuple(values["std"]))


def _description(file: CheckpointFile) -> Mapping[str, Any]:
    if METADATA_KEY not in file.metadata:
        return {"kind": "maskgit-vqgan", **vqgan_shape(_without_prefix(file.tensors), file.path)}
    values = description_in(file.metadata, file.path)
    if "kind" not in values:
        raise UserError(f"{file.path} is an encoder, not a tokenizer; give {FILE_NAME} of a `vq` run")
    return checked(TokenizerFile, {"tokenizer": values}, file.path)["tokenizer"]


def vqgan_shape(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Sizes of a MaskGIT-VQGAN from the shapes of its tensors."""
    try:
        width = tensors["encoder.conv_in.weight"].shape[0]
        vocabulary, channels = tensors["quantize.embedding.weight"].shape
        levels = _count(tensors, r"encoder\.down\.(\d+)\.")
        widths = [tensors[f"encoder.down.{i}.block.0.conv1.weight"].shape[0] for i in range(levels)]
    except (IndexError, ValueError):
        raise UserError(f"{path} is a tokenizer of a different shape: its tensors have other axes") from None
    except KeyError as error:
        raise UserError(
            f"{path} is not a known kind of tokenizer: it lacks the tensor {error.args[0]!r} of a MaskGIT-VQGAN"
        ) from None
    if any(size % width for size in widths):
        raise UserError(
            f"{path} is a tokenizer of a different shape: levels of {widths} channels after a first of {width}"
        )
    return {
        "width": width,
        "multipliers": [w // width for w in widths],
        "blocks": _count(tensors, r"encoder\.down\.0\.block\.(\d+)\."),
        "channels": channels,
        "vocabulary": vocabulary,
    }


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    return 1 + max((int(m[1]) for m in map(re.compile(pattern).match, tensors) if m), default=-1)


def _without_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefixes = (_PREFIX, f"model.{_PREFIX}")
    prefix = next((p for p in prefixes if any(name.startswith(p) for name in tensors)), "")
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def load_tensors(tokenizer: Tokenizer, tensors: Mapping[str, Tensor], path: Path) -> None:
    check_tensors(tensors, tokenizer.state_dict(), path)
    tokenizer.load_state_dict(dict(tensors), assign=True)
