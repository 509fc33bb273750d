"""Pairs of cached image tokens and texts, in batches that are a function of the seed and the step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.data.order import EpochOrder
from asterism.errors import UserError
from asterism.extras.words.attention_pooling import TokenChoice, chosen_tokens
from asterism.extras.words.recipe import CaptionDataConfig
from asterism.extras.words.sources.captioned import Captioned
from asterism.extras.words.token_rows import token_rows
from asterism.extras.words.towers.tower import TextTower
from asterism.features.cache import stored
from asterism.features.rows import Block
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.ops import streams
from asterism.ops.host import sent
from asterism.ops.random import fold_each, uniform

_TEXTS_AT_ONCE = 256


@dataclass(frozen=True)
class PairBatch:
    """Tokens of images, and the text of each: numbers of its tokens and their mask, or the vector of a frozen tower."""

    tokens: Float[Tensor, "b t d"]
    text: tuple[Int[Tensor, "b l"], Int[Tensor, "b l"]] | Float[Tensor, "b e"]

    def to(self, device: torch.device) -> PairBatch:
        text = self.text
        moved = sent(text, device) if isinstance(text, Tensor) else (sent(text[0], device), sent(text[1], device))
        return PairBatch(sent(self.tokens, device), moved)


@dataclass(frozen=True)
class TextRows:
    """The different sentences of a data set, ready for the tower or already through it."""

    sentences: list[str]
    tokens: Int[Tensor, "s l"] | None  # int32
    mask: Int[Tensor, "s l"] | None  # int8
    vectors: Float[Tensor, "s e"] | None

    def of(self, rows: Int[Tensor, " b"]) -> tuple[Tensor, Tensor] | Tensor:
        if self.vectors is not None:
            return self.vectors[rows].float()
        assert self.tokens is not None
        assert self.mask is not None
        mask = self.mask[rows].long()
        length = int(mask.sum(dim=1).max())
        return self.tokens[rows, :length].long(), mask[:, :length]


@dataclass(frozen=True)
class Pairs:
    """Images and their sentences: image i has sentences texts[first[i]] … texts[first[i + 1]]."""

    tokens: Float[Tensor, "images t d"]  # of all images, in the precision of the cache
    rows: Int[Tensor, " n"]  # of these images in `tokens`
    first: Int[Tensor, " _"]
    texts: Int[Tensor, " m"]  # rows of `sentences`
    sentences: TextRows

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, images: Int[Tensor, " b"], epoch: int, seed: int) -> PairBatch:
        """Each image with one of its sentences: a function of (seed, epoch, image)."""
        keys = fold_each(torch.full_like(images, seed), epoch)
        draws = uniform(fold_each_with(keys, self.rows[images]), 1)[:, 0]
        start, count = self.first[images], self.first[images + 1] - self.first[images]
        chosen = start + (draws * count).long().clamp(max=count - 1)
        return PairBatch(self.tokens[self.rows[images]].float(), self.sentences.of(self.texts[chosen]))

    def matches(self) -> Int[Tensor, "m 2"]:
        """(image, sentence) for every true pair."""
        counts = self.first.diff()
        return torch.stack([torch.arange(len(self)).repeat_interleave(counts), self.texts], dim=1)


def fold_each_with(keys: Int[Tensor, " b"], data: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """`fold` of every key with a number of its own."""
    return fold_each(keys * 0x5851F42D4C957F2D + data, streams.Hash.BITS)


def batches(
    pairs: Pairs, *, batch_size: int, seed: int, start: int, steps: int, rank: int, world: int
) -> Iterator[PairBatch]:
    """This process's share of every step's batch."""
    order = EpochOrder(len(pairs), batch_size, seed)
    for step in range(start, steps):
        yield pairs.batch(order.part(step, 0, 1, rank, world), order.epoch(step), seed)


def split_places(images: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Places to train on, and places to hold out."""
    if share == 0:
        return list(range(images)), []
    count = max(1, round(share * images))
    if count >= images:
        raise UserError(
            f"{images} images are too few to hold {share:.0%} of them out; add images, or set data.held_out=0"
        )
    keys = fold_each(fold_each_with(torch.full((images,), seed), torch.arange(images)), streams.Caption.HELD_OUT)
    held = set(uniform(keys, 1)[:, 0].argsort(stable=True)[:count].tolist())
    return [place for place in range(images) if place not in held], sorted(held)


def make_pairs(
    encoder: Encoder, source: Captioned, tower: TextTower, tokens: TokenChoice, config: CaptionDataConfig, seed: int
) -> tuple[Pairs, Pairs | None, list[BadImage]]:
    """Pairs to train on and held-out ones, and the images that could not be read; features come from the cache.

    Must be called by all processes of a run.
    """
    found = token_rows(
        encoder.eval(),
        source,
        lambda features: chosen_tokens(features, tokens),
        f"tokens {tokens}",
        batch_size=config.encode_batch,
        workers=config.workers,
        dtype=getattr(torch, config.precision),
    )
    if len(found.unreadable) > config.max_bad_share * len(source):
        raise UserError(
            f"{len(found.unreadable)} of {len(source)} images of {source.name} cannot be read, more than "
            f"data.max_bad_share = {config.max_bad_share:g}; the first: {found.unreadable[0]}"
        )
    row = {place: number for number, place in enumerate(found.places)}
    train, held = split_places(len(source), config.held_out, seed)

    def pairs(places: Sequence[int]) -> Pairs:
        kept = [place for place in places if place in row]
        captions = [source.captions(place) for place in kept]
        sentences = list(dict.fromkeys(text for own in captions for text in own))
        number = {text: place for place, text in enumerate(sentences)}
        return Pairs(
            found.tokens,
            torch.tensor([row[place] for place in kept]),
            torch.tensor([0, *accumulate(len(own) for own in captions)]),
            torch.tensor([number[text] for own in captions for text in own]),
            text_rows(tower, sentences),
        )

    return pairs(train), pairs(held) if held else None, found.unreadable


def training_sentences(source: Captioned, config: CaptionDataConfig, seed: int) -> Iterator[str]:
    """The captions of the images to train on, which our own tower learns its words from."""
    train, _ = split_places(len(source), config.held_out, seed)
    return (text for place in train for text in source.captions(place))


def text_rows(tower: TextTower, sentences: list[str]) -> TextRows:
    """A frozen tower runs once per sentence; for our own, sentences become numbers."""
    if tower.frozen:
        return TextRows(sentences, None, None, _frozen_vectors(tower, sentences))
    parts = [tower.tokens(sentences[i : i + _TEXTS_AT_ONCE]) for i in range(0, len(sentences), _TEXTS_AT_ONCE)]
    length = max(part.shape[1] for part, _ in parts)
    tokens = torch.zeros(len(sentences), length, dtype=torch.int32)
    mask = torch.zeros(len(sentences), length, dtype=torch.int8)
    for number, (part, own) in enumerate(parts):
        rows = slice(number * _TEXTS_AT_ONCE, number * _TEXTS_AT_ONCE + len(part))
        tokens[rows, : part.shape[1]], mask[rows, : part.shape[1]] = part.int(), own.to(torch.int8)
    return TextRows(sentences, tokens, mask, None)


def _frozen_vectors(tower: TextTower, sentences: list[str]) -> Float[Tensor, "s e"]:
    def blocks(first: int, end: int) -> Iterator[Block]:
        for start in range(first, end, _TEXTS_AT_ONCE):
            texts = sentences[start : min(start + _TEXTS_AT_ONCE, end)]
            rows = list(tower.encode(texts).cpu()[:, None])
            yield Block([str(start + place) for place in range(len(texts))], {"vectors": rows})

    digest = hashlib.blake2b("\0".join(sentences).encode(), digest_size=16).hexdigest()
    identity = {"text": tower.fingerprint, "sentences": digest, "context": tower.context}
    return stored(identity, len(sentences), blocks, batch_size=_TEXTS_AT_ONCE).arrays["vectors"]
