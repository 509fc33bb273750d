"""Zero-shot classification: every image takes the class whose name, in a few sentences, is most similar to it.

The vector of a class is the mean of its sentences' unit vectors, made a unit vector again (CLIP). Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from asterism.data.parts import DataChoice, Parts, labels_of, open_untrained
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.extras.words.protocols.captioned_settings import image_vectors, text_vectors
from asterism.inputs import read_text, user_path
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import TextEncoder, needs_text

_TOPS = (1, 5)
Templates = Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)]


class ZeroShotConfig(ProtocolConfig):
    """The sentences about a class."""

    templates: Templates = ("a {}", "a photo of a {}", "a picture of a {}")  # {} is the name of the class
    names: str | None = None  # a text file with the name of every class, one per line; None: names of the data


class ZeroShot(Evaluation):
    """Top-1 and top-5 accuracy."""

    Config = ZeroShotConfig
    config: ZeroShotConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        parts = open_untrained(choice)
        labels_of(parts.test)  # raises if there are none
        return parts

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return [*(f"top{top}" for top in _TOPS), "chance", "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        model, source = needs_text(encoder, "zero-shot classification"), self.parts.test
        names = self._names()
        found = image_vectors(self.config, model, source)
        ranked = (found.vectors @ class_vectors(model, names, self.config.templates).T).argsort(1, descending=True)
        labels = torch.tensor([source.label(place) for place in found.places])
        for top in _TOPS:
            right = (ranked[:, :top] == labels[:, None]).any(dim=1)
            yield f"top{top}", 100 * float(right.float().mean())
        yield "chance", 100 / len(names)
        if found.unreadable:
            yield "unreadable_images", float(found.unreadable)

    def _names(self) -> list[str]:
        classes = self.parts.test.classes or []
        if self.config.names is None:
            return [name.replace("_", " ") for name in classes]
        path = Path(user_path(self.config.names))
        names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
        if len(names) != len(classes):
            raise UserError(f"{path} names {len(names)} classes, but {self.parts.test.name} has {len(classes)}")
        return names

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return {}


def class_vectors(encoder: TextEncoder, names: list[str], templates: tuple[str, ...]) -> Float[Tensor, "classes e"]:
    for template in templates:
        if template.count("{}") != 1:
            raise UserError(f"the template {template!r} must contain {{}} once, where the name of the class goes")
    texts = [template.replace("{}", name) for name in names for template in templates]
    vectors = text_vectors(encoder, texts).view(len(names), len(templates), -1)
    return F.normalize(vectors.mean(dim=1), dim=1)
