"""Images reconstructed from their concepts and maps, unchanged or edited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from asterism.files import filling
from asterism.images.pictures import Picture
from asterism.images.write import to_pillow
from asterism.nn.concepts import ConceptEncoder
from asterism.ops import concept_edits
from asterism.tools.output_folder import image_names
from asterism.types import Features
from asterism.viz.pictures import to_uint8


@dataclass(frozen=True)
class Move:
    """A concept whose map is shifted, in cells of the patch grid."""

    token: int
    down: int
    right: int


@dataclass(frozen=True)
class Edit:
    """Changes to the concepts and maps of an image before it is reconstructed, applied in this order."""

    swap: Picture | None = None  # the image whose concepts replace those of each image, in the same places
    drop: tuple[int, ...] = ()
    move: tuple[Move, ...] = ()

    def __bool__(self) -> bool:
        return self.swap is not None or bool(self.drop or self.move)


def write_reconstructions(encoder: ConceptEncoder, images: Sequence[Picture], out: Path, edit: Edit) -> list[Path]:
    """Write NAME.reconstruction.png for every image and, with an edit, NAME.edited.png; returns the files."""
    other = None if edit.swap is None else encoder.encode([edit.swap])
    written = []
    with filling(out) as folder:
        for name, image in zip(image_names(images), images, strict=True):
            features = encoder.encode([image])
            made = {"reconstruction": encoder.reconstruct(*_factors(features))}
            if edit:
                made["edited"] = encoder.reconstruct(*edited(features, edit, other))
            for kind, pixels in made.items():
                file = f"{name}.{kind}.png"
                to_pillow(to_uint8(pixels.cpu())[0]).save(folder / file)
                written.append(out / file)
    return written


def edited(
    features: Features, edit: Edit, other: Features | None
) -> tuple[Float[Tensor, "b r d"], Float[Tensor, "b r h w"]]:
    """Concepts and maps after an edit; `other` are the features of the image to swap with."""
    sparse, where = _factors(features)
    if other is not None:
        sparse, _ = _factors(other)
    if edit.drop:
        where = concept_edits.drop(where, edit.drop)
    for move in edit.move:
        where = concept_edits.move(where, move.token, move.down, move.right)
    return sparse, where


def _factors(features: Features) -> tuple[Float[Tensor, "b r d"], Float[Tensor, "b r h w"]]:
    assert features.sparse is not None
    assert features.where is not None
    return features.sparse, features.where
