"""Draws the concepts that a model finds in images, on a page with the nearest images for every concept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from asterism.errors import UserError
from asterism.files import filling
from asterism.images.centre_crop import center_square
from asterism.images.pictures import Picture, batch_of
from asterism.images.write import to_pillow
from asterism.index.images import IndexedImages, open_images
from asterism.index.read import Index, open_index
from asterism.index.search import nearest_concepts
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.text_encoder import TextEncoder, needs_text
from asterism.tools.output_folder import image_names
from asterism.types import Features
from asterism.viz import concepts as draw
from asterism.viz import page
from asterism.viz.page import Tile
from asterism.viz.pictures import Pictures, heat, magnified, to_uint8

PAGE = "concepts.html"
_LEAST = 256  # pixels of a picture
_MEANT = 3  # concepts named for a word
_NOTE = (
    "In the second picture every patch has the colour of its strongest concept. Below are the maps of the concepts: "
    "how much of each patch belongs to the concept. The number is the concept's share of the whole image."
)


@dataclass(frozen=True)
class Collection:
    """Embedded images to search, and the images themselves."""

    index: Index
    images: IndexedImages
    folder: Path | None  # that contains the images, if the keys are file names
    neighbours: int  # shown per concept

    @property
    def description(self) -> str:
        """The images that were searched, and the model that embedded them."""
        facts = self.index.facts
        return (
            f"{len(self.index.keys):,} images of {facts['data']}, embedded with {facts['model']} (step {facts['step']})"
        )


def open_collection(path: Path, data: str | None, encoder: ConceptEncoder, neighbours: int) -> Collection:
    """Open and check an index and its images, before any work is done."""
    index = open_index(path, encoder)
    index.concepts()  # raises for an index without concepts
    folder = Path(data or index.facts.get("path") or "")
    return Collection(index, open_images(index, data), folder if folder.is_dir() else None, neighbours)


def write_concepts(
    encoder: ConceptEncoder,
    images: Sequence[Picture],
    out: Path,
    title: str,
    collection: Collection | None = None,
    words: Sequence[str] = (),
) -> Path:
    """Write the pictures of each image to its own folder, and a page with all of them; returns the page.

    words: to be found in the images, by an encoder that is aligned with text.
    """
    sections = []
    if words:
        needs_text(encoder, "finding words in images").encode_text(words)
    with filling(out) as folder:
        for name, image in zip(image_names(images), images, strict=True):
            drawn = _drawn(encoder, image, collection, words)
            drawn.save(folder / name)
            sections.append(page.Section(name, drawn.as_html(), _NOTE))
        count = "one image" if len(images) == 1 else f"{len(images)} images"
        searched = "" if collection is None else f", compared with {collection.description}"
        text = page.page("Concepts", f"{title} on {count}{searched}", sections)
        (folder / PAGE).write_text(text, encoding="utf-8")
    return out / PAGE


@dataclass(frozen=True)
class _Drawn:
    """The pictures of one image."""

    overview: dict[str, Tile]  # by file name
    maps: list[Tile]  # by concept
    nearest: list[list[Tile]]  # by concept; empty without a collection
    missing: str  # why there is no reconstruction; empty if there is one
    words: list[Tile]  # where each of the words is, with the concepts that mean it most

    def save(self, folder: Path) -> None:
        folder.mkdir()
        pictures = {name: tile.picture for name, tile in self.overview.items()}
        pictures |= {f"concept-{token}": tile.picture for token, tile in enumerate(self.maps)}
        pictures |= {
            f"nearest-{token}": torch.cat([tile.picture for tile in row], dim=2)
            for token, row in enumerate(self.nearest)
            if row
        }
        pictures |= {f"words-{number}": tile.picture for number, tile in enumerate(self.words)}
        for name, picture in pictures.items():
            to_pillow(picture).save(folder / f"{name}.png")

    def as_html(self) -> str:
        parts = [page.tiles(list(self.overview.values()), 192), page.note(self.missing)]
        if self.words:
            parts += [page.heading("Where the words are"), page.tiles(self.words, 192)]
        parts.append(page.tiles(self.maps))
        if self.nearest:
            parts.append(page.heading("Nearest images for each concept"))
            parts += [page.tiles([mine, *row]) for mine, row in zip(self.maps, self.nearest, strict=True)]
        return "".join(parts)


def _drawn(encoder: ConceptEncoder, image: Picture, collection: Collection | None, words: Sequence[str]) -> _Drawn:
    pixels = batch_of([image], encoder.image_size)
    features = encoder.encode(pixels)
    assert features.sparse is not None
    assert features.where is not None
    large = magnified(pixels, _LEAST)
    overview = {
        "image": Tile(large[0], "image"),
        "concepts": Tile(draw.strongest_concepts(features.where, large)[0], "strongest concept"),
    }
    missing = ""
    try:
        made = encoder.reconstruct(features.sparse, features.where).cpu()
    except UserError as error:
        missing = f"No reconstruction: {error}"
    else:
        quality = float(draw.reconstruction_quality(made, pixels)[0])
        overview["reconstruction"] = Tile(
            magnified(to_uint8(made), _LEAST)[0], f"from {features.sparse.shape[1]} concepts, {quality:.1f} dB"
        )
    nearest = _nearest(features, collection, image, encoder.image_size) if collection else []
    found = word_tiles(needs_text(encoder, "words"), features, large, words)[0] if words else []
    return _Drawn(overview, draw.taken_apart(features.where, large)[0], nearest, missing, found)


def word_tiles(encoder: TextEncoder, features: Features, images: Pictures, words: Sequence[str]) -> list[list[Tile]]:
    """For each image, a heat map of every word, with the concepts that mean it most."""
    maps = encoder.word_maps(features, words)
    tiles = []
    for image in range(len(images)):
        own = []
        for number, word in enumerate(words):
            picture = heat(maps.where[image, number][None].cpu(), images[image][None])[0]
            caption = word
            if maps.concepts is not None:
                best = maps.concepts[image, number].topk(min(_MEANT, maps.concepts.shape[2]))
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                caption += ": concept " + ", ".join(f"{concept} ({value:.2f})" for concept, value in pairs)
            own.append(Tile(picture, caption))
        tiles.append(own)
    return tiles


def _nearest(features: Features, collection: Collection, image: Picture, size: int) -> list[list[Tile]]:
    """For each concept of an image, the images with the most similar concept, drawn with that concept's map."""
    assert features.sparse is not None
    index = collection.index
    found = nearest_concepts(index, features.sparse[0], collection.neighbours, _own_key(image, collection.folder))
    maps = index.maps(found.image.flatten().tolist())
    pictures = {row: magnified(_cut(collection.images, row, size), _LEAST) for row in maps}
    return [
        [
            Tile(
                draw.concept_map(maps[row][None], token, pictures[row])[0],
                f"{similarity:.2f} {index.keys[row]}, concept {token}",
            )
            for similarity, row, token in zip(*matches, strict=True)
        ]
        for matches in zip(found.similarity.tolist(), found.image.tolist(), found.token.tolist(), strict=True)
    ]


def _cut(images: IndexedImages, row: int, size: int) -> Pictures:
    """An image of the index, cropped as it was for embedding."""
    return center_square(images[row].image, size, size)[None]


def _own_key(image: Picture, folder: Path | None) -> list[str]:
    """The key of the image itself, if it is a file of the collection."""
    if folder is None or not isinstance(image, str | os.PathLike):
        return []
    return [Path(os.path.relpath(Path(image).resolve(), folder.resolve())).as_posix()]
