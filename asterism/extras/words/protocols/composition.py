"""Composition: how often a true sentence is more similar to its image than one with a word or two exchanged.

By kind of exchange, in percent; chance is 50 %, and a tie is wrong. `blind_KIND` is what the words alone give: the same
comparison with the mean vector of all images in place of the image. What an encoder sees is the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import torch

from asterism.data.parts import DataChoice, Parts
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.extras.words.protocols.captioned_settings import (
    CaptionedParts,
    image_vectors,
    open_captioned_parts,
    text_vectors,
)
from asterism.extras.words.sources.captions import open_captions
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import needs_text


class CompositionConfig(ProtocolConfig):
    """No constants of its own."""


class Composition(Evaluation):
    """Accuracy by kind of exchange, and the mean over kinds."""

    Config = CompositionConfig
    parts: CaptionedParts

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        parts = open_captioned_parts(open_captions, choice)
        if not any(texts.negatives for texts in parts.test.texts):
            raise UserError(
                f"{parts.test.name} has no sentences with exchanged words; add them as "
                '"negatives" to the lines of a JSONL file, or use scenes'
            )
        return parts

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        model, source = needs_text(encoder, "composition"), self.parts.test
        found = image_vectors(self.config, model, source)
        rows = [(row, each) for row, place in enumerate(found.places) for each in source.texts[place].negatives]
        true, false = (
            text_vectors(model, texts) for texts in zip(*[(n.caption, n.text) for _, n in rows], strict=True)
        )
        images = found.vectors[torch.tensor([row for row, _ in rows])]
        difference = true - false
        right = ((images * difference).sum(dim=1) > 0).float()
        blind = ((found.vectors.mean(dim=0) * difference).sum(dim=1) > 0).float()
        kinds = [negative.kind for _, negative in rows]
        places = {kind: [i for i, own in enumerate(kinds) if own == kind] for kind in sorted(set(kinds))}
        accuracy = {kind: 100 * float(right[own].mean()) for kind, own in places.items()}
        yield "accuracy", fmean(accuracy.values())
        yield from accuracy.items()
        for kind, own in places.items():
            yield f"blind_{kind}", 100 * float(blind[own].mean())
        yield "sentences", float(len(rows))

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return {}
