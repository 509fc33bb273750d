"""MMVP: how often each of two statements finds its own image, for images that differ in one visual pattern.

A pair is right if both statements are more similar to their own image than to the other (chance 25 %). A tie is wrong;
the original code gives it to the second image. The mean is over patterns, as in the original.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from asterism.data.parts import DataChoice, Parts
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.extras.words.pair_scores import pair_scores
from asterism.extras.words.protocols.captioned_settings import CaptionedParts, open_captioned_parts
from asterism.extras.words.protocols.image_pairs import pair_similarities
from asterism.extras.words.sources.captions import open_pairs
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import needs_text


class MmvpConfig(ProtocolConfig):
    """How statements become sentences."""

    template: str = "a photo of {}"  # of the original; {} for captions that are whole sentences


class Mmvp(Evaluation):
    """Accuracy of pairs, by pattern and in the mean, in percent."""

    Config = MmvpConfig
    config: MmvpConfig
    parts: CaptionedParts

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        return open_captioned_parts(open_pairs, choice)

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        model, template = needs_text(encoder, "MMVP"), self.config.template
        if template.count("{}") != 1:
            raise UserError(f"mmvp.template = {template!r} must contain {{}} once, where the statement goes")
        similarity, categories = pair_similarities(self.config, model, self.parts.test, template)
        right = pair_scores(similarity).image.float().tolist()
        by_category = {
            category: 100 * fmean(value for value, own in zip(right, categories, strict=True) if own == category)
            for category in dict.fromkeys(categories)
        }
        yield "average", fmean(by_category.values())
        yield from by_category.items()
        yield "pairs", float(len(right))

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return {}
