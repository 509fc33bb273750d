"""The page about an aligned run: curves, scores, sentences next to their images, and where words are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.data.crops import evaluation_batches
from asterism.errors import UserError
from asterism.extras.words.aligned import AlignedEncoder, load_aligned
from asterism.extras.words.pairs import split_places
from asterism.extras.words.recipe import AlignRecipe
from asterism.extras.words.run import AlignedRun
from asterism.extras.words.sources.captioned import Captioned
from asterism.extras.words.sources.captions import open_captions
from asterism.extras.words.towers.words import split
from asterism.reports.frame import framed
from asterism.tools.concepts import word_tiles
from asterism.viz import page
from asterism.viz.page import Section, Tile
from asterism.viz.pictures import magnified

_SEARCHED = 256  # held-out images
_SENTENCES, _FOUND = 8, 6  # rows and images per row
_IMAGES, _WORDS = 6, 4  # images with heat maps, and words of each
_AT_ONCE = 32
# Words that name nothing that could be pointed at.
_SMALL_WORDS = frozenset("a an the of and on at in to is with by left right above below front".split())  # noqa: SIM905


def aligned_page(run: AlignedRun) -> str:
    """The whole page."""
    recipe = run.align_recipe
    about = f"{recipe.source.path} aligned with {recipe.text.name} text, on {recipe.data.path}"
    return framed(run, recipe, about, _lead(recipe, run.metrics()), _pictures(run, recipe))


def _lead(recipe: AlignRecipe, metrics: Sequence[Mapping[str, Any]]) -> str:
    name = "held_out/text_to_image_r1"
    values = [record[name] for record in metrics if name in record]
    if not values:
        return f"The probe reads {recipe.probe.tokens} tokens. No images were held out to measure it."
    return (
        f"The probe reads {recipe.probe.tokens} tokens. For {values[-1]:.1f} % of the sentences about held-out images, "
        f"the right image comes first; before training it was {values[0]:.1f} %."
    )


def _pictures(run: AlignedRun, recipe: AlignRecipe) -> list[Section]:
    """Sentences and words on held-out images; a run whose data or weights are gone still has a page."""
    try:
        encoder = load_aligned(run.alignment)
        source = open_captions(recipe.data.path, recipe.data.split)
        train, held = split_places(len(source), recipe.data.held_out, recipe.trainer.seed)
        seen = source.part((held or train)[:_SEARCHED])
        images, vectors, places = _encoded(encoder, seen)
    except UserError as error:
        return [Section("Pictures", page.note(f"No pictures: {error}"))]
    which = "held-out" if held else "training"
    return [
        Section(
            "Sentences next to their images",
            _sentences(encoder, seen, images, vectors, places),
            f"Each sentence, and the images most similar to it among {len(images)} {which} images; ✓ marks those that "
            "it was written about.",
        ),
        Section(
            "Words by concept",
            _words(encoder, seen, images, places),
            "Where the probe finds each word: bright where the concepts are, or the patches, that say it.",
        ),
    ]


def _encoded(
    encoder: AlignedEncoder, source: Captioned
) -> tuple[UInt8[Tensor, "n 3 s s"], Float[Tensor, "n e"], list[int]]:
    images, vectors, places = [], [], []
    size = encoder.image_size
    for batch in evaluation_batches(source, size, resize=size, batch_size=_AT_ONCE):
        if batch.keys:
            aligned = encoder.encode(batch.images).aligned
            assert aligned is not None
            images.append(batch.images)
            vectors.append(aligned)
            places += batch.index.tolist()
    if not images:
        raise UserError(f"none of the images of {source.name} can be read")
    return torch.cat(images), torch.cat(vectors), places


def _sentences(
    encoder: AlignedEncoder, source: Captioned, images: Tensor, vectors: Tensor, places: Sequence[int]
) -> str:
    chosen = list(dict.fromkeys(max(source.captions(place), key=len) for place in places))[:_SENTENCES]
    similarity = encoder.encode_text(chosen) @ vectors.T
    parts = []
    for text, row in zip(chosen, similarity, strict=True):
        best = row.topk(min(_FOUND, len(row)))
        tiles = [
            Tile(
                magnified(images[image][None])[0],
                f"{'✓ ' if text in source.captions(places[image]) else ''}{value:.2f} {source.keys()[places[image]]}",
            )
            for image, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        parts.append(page.heading(text) + page.tiles(tiles))
    return "".join(parts)


def _words(encoder: AlignedEncoder, source: Captioned, images: Tensor, places: Sequence[int]) -> str:
    parts = []
    for image, place in list(zip(images, places, strict=True))[:_IMAGES]:
        caption = max(source.captions(place), key=len)
        words = [word for word in dict.fromkeys(split(caption)) if word.isalpha() and word not in _SMALL_WORDS]
        if not words:
            continue
        large = magnified(image[None])
        try:
            tiles = word_tiles(encoder, encoder.encode(image[None]), large, words[:_WORDS])[0]
        except UserError as error:
            return page.note(str(error))
        parts.append(page.tiles([Tile(large[0], caption), *tiles], 128))
    return "".join(parts)
