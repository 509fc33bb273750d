"""An encoder aligned with text: its images and sentences have vectors in one space.

The image encoder is frozen. A probe pools its tokens into the space of a text tower; both are trained by
`asterism align`. `alignment.safetensors` next to `encoder.safetensors` contains the probe, the scale and bias of the
loss, and our own text tower. A published text tower is loaded again by its name.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from safetensors import safe_open
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError, reason_of
from asterism.extras.words.attention_pooling import FIELDS, AttentionPooling, TokenChoice, chosen_tokens
from asterism.extras.words.towers import own_tower
from asterism.extras.words.towers.build import rebuild_tower
from asterism.extras.words.towers.tower import TextTower
from asterism.inputs import is_text, parse_json
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import FILE_NAME, Encoder
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.nn.safetensors_file import METADATA_KEY, read_safetensors, write_safetensors
from asterism.nn.text_encoder import TextEncoder, WordMaps
from asterism.nn.weights.load import load_encoder
from asterism.nn.weights.metadata import check_fits, checked, description_in
from asterism.ranges import Count, CountFromZero, Few, NonNegative
from asterism.types import Features

ALIGNMENT_NAME = "alignment.safetensors"
_KIND = "alignment"


class Alignment(nn.Module):
    """The trained part: probe, text tower, and the scale and bias of the pair loss."""

    def __init__(
        self, probe: AttentionPooling, text: TextTower, tokens: TokenChoice, scale: float, bias: float
    ) -> None:
        super().__init__()
        self.probe = probe
        self.text = text
        self.tokens: TokenChoice = tokens
        self.log_scale = nn.Parameter(torch.tensor(scale).log())
        self.bias = nn.Parameter(torch.tensor(bias))

    def images(self, features: Features) -> Float[Tensor, "b e"]:
        """Unit vectors of images."""
        return self.images_of_tokens(chosen_tokens(features, self.tokens))

    def images_of_tokens(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b e"]:
        return F.normalize(self.probe(tokens), dim=1)


class AlignedEncoder(TextEncoder):
    """An encoder with an alignment."""

    alignment: Alignment

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        features = super().forward(pixels)
        return replace(features, aligned=self.align(features))

    @property
    def aligned_from(self) -> frozenset[str]:
        return frozenset(FIELDS[part] for part in self.alignment.tokens.split("+"))

    def align(self, features: Features) -> Float[Tensor, "b e"]:
        return self.alignment.images(features)

    def encode_text(self, texts: str | Sequence[str]) -> Float[Tensor, "n e"]:
        sentences = [texts] if isinstance(texts, str) else list(texts)
        if not sentences or any(not isinstance(text, str) or not text.strip() for text in sentences):
            raise UserError("give at least one sentence, and none that is empty")
        if broken := [text for text in sentences if not is_text(text)]:
            raise UserError(f"the sentence {ascii(broken[0])[:100]} has an invalid character; write it again")
        return self.alignment.text.encode(sentences)

    def word_maps(self, features: Features, texts: Sequence[str]) -> WordMaps:
        return word_maps(self.alignment, features, self.encode_text(texts))

    def keep_named_outputs(self) -> None:
        recorded: Any = self.alignment
        recorded.text = nn.Identity()  # images enter a graph, sentences do not

    def frozen(self) -> Encoder:
        return Encoder(self.backbone, self.mean, self.std, self.image_size).eval()

    def save_parts(self, path: Path) -> None:
        super().save_parts(path)
        save_alignment(self.alignment, self.frozen(), path.with_name(ALIGNMENT_NAME), self.step)


class AlignedConceptEncoder(AlignedEncoder, ConceptEncoder):
    """An aligned encoder with concepts."""

    def frozen(self) -> Encoder:
        parts = (self.localization, self.reconstruction, self.mean, self.std, self.image_size)
        return ConceptEncoder(self.backbone, *parts).eval()


def aligned_encoder(encoder: Encoder, alignment: Alignment) -> AlignedEncoder:
    """The encoder with an alignment; it shares the modules of both."""
    made: AlignedEncoder
    if isinstance(encoder, ConceptEncoder):
        parts = (encoder.localization, encoder.reconstruction, encoder.mean, encoder.std, encoder.image_size)
        made = AlignedConceptEncoder(encoder.backbone, *parts)
    else:
        made = AlignedEncoder(encoder.backbone, encoder.mean, encoder.std, encoder.image_size)
    made.alignment = alignment
    return made.eval()


@torch.no_grad()
def word_maps(alignment: Alignment, features: Features, words: Float[Tensor, "words e"]) -> WordMaps:
    """Where the probe finds what the words say.

    The probe pools each token as if it were the only one of the image, which gives it a vector in the space of texts. A
    patch has the similarities of its concepts, weighted by how much of it belongs to each.
    """
    choice = alignment.tokens

    def likeness(tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b words t"]:
        return words @ F.normalize(alignment.probe.one_by_one(tokens), dim=2).mT

    if choice.startswith("sparse") and features.sparse is not None and features.where is not None:
        concepts = likeness(features.sparse)
        return WordMaps(concepts, torch.einsum("bwr,brij->bwij", concepts, features.where))
    if choice in ("patches", "mean-patch"):
        where = likeness(features.patches)
        return WordMaps(None, where.view(*where.shape[:2], *features.grid))
    raise UserError(
        f"this model was aligned with probe.tokens={choice}, which has no place in the image; align the encoder again "
        "with probe.tokens=sparse or patches to see where words are"
    )


def backbone_fingerprint(encoder: Encoder) -> str:
    """Of the part of an encoder that the probe reads: a decoder, or its tokenizer, changes nothing for it."""
    plain = Encoder(encoder.backbone, encoder.mean, encoder.std, encoder.image_size)
    if next(plain.parameters()).dtype != torch.float32:
        plain = copy.deepcopy(plain).float()  # as a file in half precision is loaded
    return encoder_fingerprint(plain)


class _ProbeShape(Config):
    dim: Count
    out_dim: Count
    heads: Few
    mlp_ratio: NonNegative


class _AlignmentFile(Config):
    """The metadata of `alignment.safetensors`."""

    kind: Annotated[str, Field(pattern=f"^{_KIND}$")]
    tokens: TokenChoice
    probe: _ProbeShape
    text: dict[str, Any]
    encoder: str  # fingerprint of the backbone that the probe reads
    step: CountFromZero | None


def save_alignment(alignment: Alignment, encoder: Encoder, path: Path, step: int | None) -> None:
    """Write the trained part, which belongs to this encoder."""
    probe = alignment.probe
    description = _AlignmentFile(
        kind=_KIND,
        tokens=alignment.tokens,
        probe=_ProbeShape(
            dim=probe.key_value.in_features,
            out_dim=probe.project.out_features,
            heads=probe.heads,
            mlp_ratio=probe.mlp_ratio,
        ),
        text=alignment.text.describe(),
        encoder=backbone_fingerprint(encoder),
        step=step,
    )
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in alignment.state_dict().items()}
    write_safetensors(path, tensors, description.model_dump(mode="json"))


def alignment_file(place: Path) -> Path | None:
    """The file of an alignment in a folder or next to an encoder's file; None if there is none."""
    path = place / ALIGNMENT_NAME if place.is_dir() else place.with_name(ALIGNMENT_NAME)
    if not path.is_file() or (not place.is_dir() and place.name not in (ALIGNMENT_NAME, FILE_NAME)):
        return None
    try:
        with safe_open(path, framework="pt") as file:
            described = parse_json((file.metadata() or {}).get(METADATA_KEY, "{}"))
    except Exception:  # on damaged headers safetensors raises almost any exception; the loader explains them
        return path
    return path if isinstance(described, dict) and described.get("kind") == _KIND else None


def open_alignment(place: Path, **words: Any) -> AlignedEncoder | None:
    """The aligned encoder of this folder or file; None if there is none. For `asterism.models`."""
    file = alignment_file(place)
    return None if file is None else load_aligned(file, **words)


def load_aligned(file: Path, text: str | None = None, **words: Any) -> AlignedEncoder:
    """The aligned encoder of `alignment.safetensors` and of the encoder next to it, in evaluation mode.

    text: where a published text tower is now, if it was moved. words: as in `load_encoder`.
    """
    tensors, metadata = read_safetensors(file)
    described = _AlignmentFile.parse(checked(_AlignmentFile, description_in(metadata, file), file))
    encoder = load_encoder(file.parent, **words)
    if described.encoder != backbone_fingerprint(encoder):
        raise UserError(f"{file} belongs to another encoder than the one next to it; align that one again")
    try:
        check_fits(lambda: _bare_probe(described.probe), tensors, file)
        if described.text["kind"] == own_tower.NAME:
            check_fits(lambda: own_tower.rebuild_own_tower(described.text), tensors, file)
        tower = rebuild_tower(described.text, text)
    except (KeyError, TypeError) as error:
        raise UserError(f"the description of the text tower in {file} is damaged: {reason_of(error)}") from None
    alignment = Alignment(_bare_probe(described.probe), tower, described.tokens, 1.0, 0.0)
    try:
        alignment.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise UserError(f"the tensors of {file} are not those that it describes: {reason_of(error)}") from None
    made = aligned_encoder(encoder, alignment.requires_grad_(False))
    made.step = described.step
    return made


def _bare_probe(shape: _ProbeShape) -> AttentionPooling:
    """With weights that have yet to be loaded."""
    return AttentionPooling(shape.dim, shape.out_dim, shape.heads, shape.mlp_ratio)
