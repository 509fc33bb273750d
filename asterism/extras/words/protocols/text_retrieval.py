"""Retrieval between images and sentences: how often a right one is among the first 1, 5 and 10.

Text to image: every different sentence searches all images. Image to text: every image searches all different
sentences, and any of its own is right. An image that shares a sentence word by word is right for it too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from asterism.data.parts import DataChoice, Parts
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.extras.words.pair_scores import recall
from asterism.extras.words.protocols.captioned_settings import (
    CaptionedParts,
    image_vectors,
    open_captioned_parts,
    text_vectors,
)
from asterism.extras.words.sources.captions import open_captions
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import needs_text

_KS = (1, 5, 10)


class TextRetrievalConfig(ProtocolConfig):
    """No constants of its own."""


class TextRetrieval(Evaluation):
    """Recall at 1, 5 and 10 in both directions."""

    Config = TextRetrievalConfig
    parts: CaptionedParts

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        return open_captioned_parts(open_captions, choice)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        recalls = [f"{way}_r{k}" for way in ("text_to_image", "image_to_text") for k in _KS]
        return [*recalls, "chance_r1", "images", "sentences", "unreadable_images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        model, source = needs_text(encoder, "retrieval by text"), self.parts.test
        found = image_vectors(self.config, model, source)
        captions = [source.captions(place) for place in found.places]
        sentences = list(dict.fromkeys(text for own in captions for text in own))
        number = {text: place for place, text in enumerate(sentences)}
        matches = torch.tensor([(image, number[text]) for image, own in enumerate(captions) for text in own])
        texts = text_vectors(model, sentences)
        for k, value in recall(texts, found.vectors, matches.flip(1), _KS).items():
            yield f"text_to_image_r{k}", value
        for k, value in recall(found.vectors, texts, matches, _KS).items():
            yield f"image_to_text_r{k}", value
        yield "chance_r1", 100 / len(captions)
        yield "images", float(len(captions))
        yield "sentences", float(len(sentences))
        if found.unreadable:
            yield "unreadable_images", float(found.unreadable)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return {}
