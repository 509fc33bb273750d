"""One image: what the model sees in it, where, and the nearest places, concepts and images in the whole set."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from asterism.errors import UserError
from asterism.extras.explorer.answers import Answer, Refused, as_bytes, as_json, as_picture
from asterism.extras.explorer.endpoints.endpoint import Endpoint
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.model import ExploredModel
from asterism.extras.explorer.query import Query
from asterism.images.centre_crop import center_square
from asterism.types import Features
from asterism.viz.concepts import concept_map, strongest_concepts
from asterism.viz.pictures import heat, principal_colors

SIZES = ("64", "128", "256", "448")  # pixels a side of pictures
MOST_FOUND = 200
_DRAWN = ("photo", "concepts", "concept", "components", "attention")
_MOST_MATRIX = 1600  # patches whose similarities are sent at once: 2.5 MB
_MOST_SEARCHED = 50_000  # places looked through for some in enough images
_CONTEXT = 2  # patches around a place that are shown with it


def thumbnail(explored: Explored, query: Query) -> Answer:
    """The centre of an image, as the model sees it, in the size of the page."""
    row, size = explored.row(query), int(query.choice("size", SIZES, "128"))
    answer = explored.thumbnails.get((row, size))
    if answer is None:
        answer = as_picture(center_square(explored.collection.image(row), size, size))
        explored.thumbnails.put((row, size), answer)
    return answer


def facts(explored: Explored, query: Query) -> Answer:
    """Name, label, columns and the shares of the concepts."""
    row, model, collection = explored.row(query), explored.model(query), explored.collection
    seen = explored.see(model, row)
    found: dict[str, Any] = {
        "row": row,
        "key": collection.keys[row],
        "label": collection.classes[collection.labels[row]] if collection.labels and collection.classes else None,
        "given": explored.labels.all().get(row),
        "columns": {name: _plain(values[row]) for name, values in collection.columns.items()},
        "grid": list(seen.features.grid),
        "concepts": [],
    }
    if seen.features.where is not None:
        shares = seen.features.where[0].mean(dim=(1, 2)).tolist()
        names = _names(model, seen.features, collection.classes)
        found["concepts"] = [{"share": share, "name": name} for share, name in zip(shares, names, strict=True)]
    return as_json(found)


def drawn(explored: Explored, query: Query) -> Answer:
    """A picture of what a model sees: concepts, one concept, principal components, or attention."""
    row, model = explored.row(query), explored.model(query)
    kind, size = query.choice("show", _DRAWN, "photo"), int(query.choice("size", SIZES, "448"))
    canvas = center_square(explored.collection.image(row), size, size)[None]
    if kind == "photo":
        return as_picture(canvas[0])
    seen = explored.see(model, row)
    features = seen.features
    if kind == "components":
        return as_picture(principal_colors(features.patches, features.grid, size)[0])
    if kind == "attention":
        maps = _attention(explored, query)
        head = query.integer("head", 0, len(maps), 0)  # 0: the mean of all
        chosen = maps.mean(dim=0) if head == 0 else maps[head - 1]
        return as_picture(heat(chosen[None], canvas)[0])
    if features.where is None:
        raise Refused(f"{model.name} has no concepts", 409)
    if kind == "concepts":
        return as_picture(strongest_concepts(features.where, canvas)[0])
    token = query.integer("token", 0, features.where.shape[1] - 1)
    return as_picture(concept_map(features.where, token, canvas)[0])


def similarities(explored: Explored, query: Query) -> Answer:
    """The cosine similarity of every patch to every other, −1 … 1 as 0 … 255, row by row: heat maps need no request."""
    row, model = explored.row(query), explored.model(query)
    patches = normalize(explored.see(model, row).features.patches[0], dim=1)
    if len(patches) > _MOST_MATRIX:
        raise Refused(f"the image has {len(patches):,} patches; heat maps are drawn for up to {_MOST_MATRIX:,}", 409)
    levels = ((patches @ patches.T + 1) * 127.5).clamp(0, 255).round().to(torch.uint8)
    return as_bytes(levels.numpy().tobytes())


def places(explored: Explored, query: Query) -> Answer:
    """The places of the whole set that are nearest to a patch of an image; at most one per image."""
    row, count = explored.row(query), query.integer("count", 1, MOST_FOUND, 24)
    patches = explored.see(explored.models[0], row).features.patches[0]
    patch = query.integer("patch", 0, len(patches) - 1)
    bank = explored.places()
    query_vector = normalize(patches[patch : patch + 1], dim=1)
    wanted, items = 8 * count, dict[int, dict[str, Any]]()
    while True:  # the nearest places may all be in few images; then more are requested
        similarity, found = bank.search.nearest(query_vector, min(wanted, len(bank.vectors)))
        for value, place in zip(similarity[0].tolist(), found[0].tolist(), strict=True):
            other = bank.rows[place // bank.per_image]
            if other != row and other not in items:
                items[other] = {"row": other, "patch": place % bank.per_image, "similarity": round(value, 4)}
        if len(items) >= count or wanted >= min(len(bank.vectors), _MOST_SEARCHED):
            break
        wanted *= 8
    nearest = list(items.values())[:count]
    return as_json({"items": nearest, "searched": len(bank.rows), "images": len(explored.collection)})


def place(explored: Explored, query: Query) -> Answer:
    """A place with what surrounds it; the header says which part of the picture the patch is."""
    row, size = explored.row(query), 128
    grid = explored.see(explored.models[0], row).features.grid
    patch = query.integer("patch", 0, grid[0] * grid[1] - 1)
    side = 448 // max(grid) * max(grid)
    picture = center_square(explored.collection.image(row), side, side)
    y, x = patch // grid[1], patch % grid[1]
    reach = min(2 * _CONTEXT + 1, *grid)
    top, left = (max(0, min(place - reach // 2, cells - reach)) for place, cells in ((y, grid[0]), (x, grid[1])))
    high, wide = side // grid[0], side // grid[1]
    cut = picture[:, top * high : (top + reach) * high, left * wide : (left + reach) * wide]
    box = ",".join(f"{value:.4f}" for value in ((x - left) / reach, (y - top) / reach, 1 / reach, 1 / reach))
    return as_picture(_resized(cut, size), **{"X-Box": box})


def holders(explored: Explored, query: Query) -> Answer:
    """The images that hold the concept of an image: those with the most similar concept, once each."""
    row, count = explored.row(query), query.integer("count", 1, MOST_FOUND, 24)
    collection = explored.collection
    token = query.integer("token", 0, collection.tokens - 1)
    assert collection.concepts is not None
    own = collection.concepts[row * collection.tokens + token][None].float()
    wanted = min(len(collection.concepts), (count + 1) * collection.tokens)
    similarity, found = explored.concept_search.nearest(own, wanted)
    items: dict[int, dict[str, Any]] = {}
    for value, place in zip(similarity[0].tolist(), found[0].tolist(), strict=True):
        other = place // collection.tokens
        if other != row and other not in items:
            items[other] = {"row": other, "token": place % collection.tokens, "similarity": round(value, 4)}
            if len(items) == count:
                break
    return as_json({"items": list(items.values())})


def _attention(explored: Explored, query: Query) -> Tensor:
    row, model = explored.row(query), explored.model(query)
    try:
        return model.attention(row, explored.see(model, row))
    except UserError as error:
        raise Refused(str(error), 409) from None


def _names(model: ExploredModel, features: Features, classes: list[str] | None) -> list[str | None]:
    """The class whose name is nearest to each concept, for models aligned with text; else none."""
    assert features.sparse is not None
    found = model.concept_names(features, classes) if classes else None
    return [*found] if found is not None else [None] * features.sparse.shape[1]


def _resized(image: UInt8[Tensor, "3 h w"], size: int) -> UInt8[Tensor, "3 s s"]:
    return interpolate(image[None].float(), (size, size), mode="bilinear").round().clamp(0, 255).to(torch.uint8)[0]


def _plain(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and value != value else value


ENDPOINTS = (
    Endpoint("image/thumbnail", thumbnail, ("row", "size")),
    Endpoint("image/facts", facts, ("row", "model")),
    Endpoint("image/drawn", drawn, ("row", "model", "show", "size", "token", "head")),
    Endpoint("image/similarities", similarities, ("row", "model")),
    Endpoint("image/places", places, ("row", "patch", "count")),
    Endpoint("image/place", place, ("row", "patch")),
    Endpoint("image/holders", holders, ("row", "token", "count")),
)
