"""Winoground: how often sentences with the same words in another order find their own image of two, and the reverse.

text    each image is more similar to its own sentence than to the other (chance 25 %)
image   each sentence is more similar to its own image than to the other (chance 25 %)
group   both (chance 16.7 %). A tie is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from asterism.data.parts import DataChoice, Parts
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.extras.words.pair_scores import pair_scores
from asterism.extras.words.protocols.captioned_settings import CaptionedParts, open_captioned_parts
from asterism.extras.words.protocols.image_pairs import pair_similarities
from asterism.extras.words.sources.captions import open_pairs
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import needs_text


class WinogroundConfig(ProtocolConfig):
    """No constants of its own."""


class Winoground(Evaluation):
    """Text, image and group score in percent."""

    Config = WinogroundConfig
    parts: CaptionedParts

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        return open_captioned_parts(open_pairs, choice)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return ["text", "image", "group", "pairs"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        model = needs_text(encoder, "Winoground")
        similarity, _ = pair_similarities(self.config, model, self.parts.test)
        scores = pair_scores(similarity)
        for name in ("text", "image", "group"):
            yield name, 100 * float(getattr(scores, name).float().mean())
        yield "pairs", float(len(similarity))

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return {}
