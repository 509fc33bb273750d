"""Image retrieval with frozen features: whether images of the same object are nearest neighbours.

The protocol of DINO on the revisited Oxford and Paris sets: queries are cropped to their boxes; images are shrunk until
their longer side is 512 (for an encoder of 224, in proportion for others); class tokens of unit length are ranked by
cosine. Medium: easy and hard images are positives, junk is ignored. Hard: hard images are positives, junk and easy ones
are ignored. `scales=[1, 0.7071, 0.5]` adds the tokens of smaller copies. With labelled folders, the positives of a test
image are the training images of its class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import field_validator
from torch import Tensor
from torch.nn import functional as F

from asterism.data import Source
from asterism.data.parts import DataChoice, Parts, labels_of, open_labelled
from asterism.data.sources.segmented import NearestMultiple
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.extras.papers.landmarks import GroundTruth, ground_truth_file, open_landmarks, read_ground_truth
from asterism.extras.papers.mean_average_precision import RetrievalScores, retrieval_scores
from asterism.features.cache import stored
from asterism.features.extract import origin
from asterism.features.rows import Block
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.ranges import Count, Positive
from asterism.viz.bar import Bar

_QUERIES = 256  # ranked at a time


class RetrievalConfig(ProtocolConfig):
    """Constants of the protocol; the defaults are those of the papers."""

    longer_side: Positive = 512 / 224  # maximum, relative to the encoder's image size
    scales: tuple[Positive, ...] = (1.0,)  # sizes whose class tokens are added
    precision_at: tuple[Count, ...] = (1, 5, 10)

    @field_validator("scales", "precision_at")
    @classmethod
    def _positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or min(value) <= 0:
            raise ValueError("give one or several values above 0")
        return value


@dataclass(frozen=True)
class RetrievalParts(Parts):
    """`train` is the database, `test` the queries; `truth` is set if the data has its own ground truth."""

    truth: GroundTruth | None = None


class Retrieval(Evaluation):
    """Mean average precision and mean precision at some ranks, in percent."""

    Config = RetrievalConfig
    config: RetrievalConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        file = ground_truth_file(choice.path)
        if file is None:
            return open_labelled(choice, config.holdout, config.seed)
        truth = read_ground_truth(file)
        return RetrievalParts(*open_landmarks(file, truth), truth=truth)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        assert isinstance(config, RetrievalConfig)
        kinds = ["map", *(f"mp{k}" for k in config.precision_at)]
        return [f"{kind}{suffix}" for suffix in ("", "_medium", "_hard") for kind in kinds]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        database, queries = (self._vectors(encoder, part) for part in (self.parts.train, self.parts.test))
        for setting, (positives, ignored) in self._settings().items():
            found = _scores(queries, database, positives, ignored, self.config.precision_at)
            if found.ap.isnan().all():
                raise UserError(f"no query of {self.parts.test.name} has an image to find ({setting or 'labels'})")
            suffix = f"_{setting}" if setting else ""
            yield f"map{suffix}", 100 * found.map
            for k, value in zip(self.config.precision_at, found.mean_precision.tolist(), strict=True):
                yield f"mp{k}{suffix}", 100 * value

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        return super().constants(encoder) | {"longer_side": round(self.config.longer_side * encoder.image_size)}

    def _settings(self) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
        """Positions of the positive and of the ignored images of every query, by name of the setting."""
        if isinstance(self.parts, RetrievalParts) and self.parts.truth is not None:
            truth = self.parts.truth
            easy, hard, junk = (
                [torch.tensor(row, dtype=torch.int64) for row in rows] for rows in (truth.easy, truth.hard, truth.junk)
            )
            return {"medium": (_joined(easy, hard), junk), "hard": (hard, _joined(junk, easy))}
        members: dict[int, list[int]] = {}
        for place, label in enumerate(labels_of(self.parts.train)):
            members.setdefault(label, []).append(place)
        own = {label: torch.tensor(places) for label, places in members.items()}
        none = torch.empty(0, dtype=torch.int64)
        asked = labels_of(self.parts.test)
        return {"": ([own.get(label, none) for label in asked], [none] * len(asked))}

    def _vectors(self, encoder: Encoder, source: Source) -> Float[Tensor, "n d"]:
        """One vector per image. Sizes differ, so each image is a batch of one. An unreadable image is an error, because
        it would shift the positions."""
        longest = round(self.config.longer_side * encoder.image_size)
        multiple, scales = encoder.patch_size, self.config.scales

        def blocks(first: int, end: int) -> Iterator[Block]:
            with Bar(source.name, end, first) as bar:
                for place in range(first, end):
                    try:
                        sample = source[place]
                    except BadImage as error:
                        raise UserError(f"{source.name}: {error}; retrieval needs every image of its lists") from None
                    vector = _multi_scale(encoder, sample.image, longest, multiple, scales)
                    yield Block([sample.key], {"vectors": [vector]})
                    bar.advance(1)

        transform = {"longer_side": longest, "scales": list(scales)}
        identity = {**origin(encoder, source), "layer": "cls", "transform": transform}
        return stored(identity, len(source), blocks).arrays["vectors"]


def _multi_scale(
    encoder: Encoder, image: Tensor, longest: int, multiple: int, scales: Sequence[float]
) -> Float[Tensor, "1 d"]:
    """Sum over the scales of the class token, at unit length."""
    height, width = image.shape[1:]
    shrunk = min(longest, max(height, width))
    total: Tensor | float = 0.0
    for scale in scales:
        size = NearestMultiple(multiple, max(1, round(scale * shrunk)))(height, width)
        pixels = F.interpolate(image[None], size, mode="bicubic", antialias=True)
        total = total + encoder.encode_cls(pixels).float()
    assert isinstance(total, Tensor)
    return F.normalize(total, dim=1).cpu()


def _scores(
    queries: Float[Tensor, "q d"],
    database: Float[Tensor, "n d"],
    positives: Sequence[Int[Tensor, " _"]],
    ignored: Sequence[Int[Tensor, " _"]],
    ks: Sequence[int],
) -> RetrievalScores:
    ap, precision = [], []
    for start in range(0, len(queries), _QUERIES):
        part = slice(start, start + _QUERIES)
        rankings = (queries[part] @ database.mT).argsort(dim=1, descending=True, stable=True)
        found = retrieval_scores(rankings, positives[part], ignored[part], ks)
        ap.append(found.ap)
        precision.append(found.precision)
    return RetrievalScores(torch.cat(ap), torch.cat(precision))


def _joined(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    return [torch.cat(pair) for pair in zip(a, b, strict=True)]
