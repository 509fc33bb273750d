"""The map: what there is, points in the plane, and their colours."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.extras.explorer.answers import Answer, Refused, as_bytes, as_json
from asterism.extras.explorer.collection import evenly
from asterism.extras.explorer.endpoints.endpoint import JSON_BYTES, Endpoint
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.layouts import LAYOUTS, Layout, positions, quantised
from asterism.extras.explorer.neighbourhood import usual_clusters
from asterism.extras.explorer.query import Query

MOST_CLUSTERS = 64
_MOST_CONCEPTS = 200_000  # points; beyond, evenly spaced images represent the others
_MOST_PATCHES = 100_000
_MOST_CATEGORIES = 400
_OWN_COLOURS = ("label", "cluster", "typicality", "agreement", "labels so far")


def world(explored: Explored, query: Query) -> Answer:
    """What the page needs before it draws anything."""
    collection, models = explored.collection, explored.models
    return as_json(
        {
            "name": collection.name,
            "images": len(collection),
            "classes": collection.classes,
            "columns": list(collection.columns),
            "clusters": _clusters(explored),
            "concepts": collection.tokens,
            "conceptImages": len(_concept_rows(explored)) if collection.tokens else 0,
            "grid": list(models[0].grid),
            "text": models[0].reads_text,
            "writes": explored.writes is not None,
            "models": [
                {
                    "name": model.name,
                    "run": model.run is not None,
                    "concepts": model.tokens,
                    "heads": model.heads,
                    "reconstructs": model.reconstructs,
                    "size": model.encoder.image_size,
                }
                for model in models
            ],
        }
    )


def layouts(explored: Explored, query: Query) -> Answer:
    """Which layouts are ready. The first request starts t-SNE, so that it is ready soon."""
    of = query.choice("of", ("images", "concepts"), "images")
    explored.jobs.start(_job(of, "tsne"), lambda: quantised(positions(_vectors(explored, of), "tsne")))
    return as_json(
        {layout: "ready" if layout == "pca" else explored.jobs.state(_job(of, layout)) for layout in LAYOUTS}
    )


def points(explored: Explored, query: Query) -> Answer:
    """Positions of all images, or of all concepts: two 16-bit numbers each."""
    of = query.choice("of", ("images", "concepts"), "images")
    layout: Layout = query.choice("layout", LAYOUTS, "pca")  # type: ignore[assignment]
    vectors = _vectors(explored, of)
    return as_bytes(explored.jobs.result(_job(of, layout), lambda: quantised(positions(vectors, layout))))


def patch_points(explored: Explored, query: Query) -> Answer:
    """Positions of every patch of some images, image by image."""
    places = explored.model(query).grid
    fields = query.json()
    rows = fields.integers("rows", 0, len(explored.collection) - 1, _MOST_PATCHES // (places[0] * places[1]))
    if not rows:
        raise Refused("select some images first: their patches become the points")
    layout: Layout = query.choice("layout", LAYOUTS, "pca")  # type: ignore[assignment]
    model = explored.models[0]

    def laid_out() -> bytes:
        patches = torch.cat([explored.see(model, row).features.patches[0] for row in rows])
        return quantised(positions(torch.nn.functional.normalize(patches, dim=1), layout))

    if layout == "pca":
        return as_bytes(laid_out())
    return as_bytes(explored.jobs.latest(_job("patches", layout), ",".join(map(str, rows)), laid_out))


def concept_rows(explored: Explored, query: Query) -> Answer:
    """The image of each group of concepts on the map, as 32-bit numbers."""
    if not explored.collection.tokens:
        raise Refused("this model has no concepts", 409)
    return as_bytes(np.asarray(_concept_rows(explored), dtype="<u4").tobytes())


def colour(explored: Explored, query: Query) -> Answer:
    """A value for every image: a category or a number."""
    collection = explored.collection
    by = query.choice("by", (*_OWN_COLOURS, *collection.columns))
    if by == "label":
        if collection.labels is None or collection.classes is None:
            raise Refused("these images have no labels", 409)
        return _categories(torch.tensor(collection.labels), collection.classes)
    if by == "cluster":
        count = query.integer("clusters", 1, min(MOST_CLUSTERS, len(collection)), _clusters(explored))
        found = explored.clusters(count)
        return _categories(found.of, [f"cluster {number + 1}" for number in range(count)])
    if by == "typicality":
        return _numbers(explored.neighbourhood().density)
    if by == "agreement":
        if collection.labels is None:
            raise Refused("these images have no labels to agree on", 409)
        labels = torch.tensor(collection.labels)
        same = labels[explored.neighbourhood().rows] == labels[:, None]
        return _numbers(same.float().mean(dim=1))
    if by == "labels so far":
        given = explored.labels.all()
        names = sorted(set(given.values()))
        chosen = torch.full((len(collection),), len(names))
        for row, label in given.items():
            chosen[row] = names.index(label)
        return _categories(chosen, [*names, "none yet"])
    column = collection.columns[by]
    if isinstance(column[0], str):
        names = sorted({str(value) for value in column})
        if len(names) > _MOST_CATEGORIES:
            raise Refused(
                f"the column {by} has {len(names):,} different texts; at most {_MOST_CATEGORIES} have colours"
            )
        number = {name: place for place, name in enumerate(names)}
        return _categories(torch.tensor([number[str(value)] for value in column]), names)
    return _numbers(torch.tensor([float(value) for value in column]))


def _clusters(explored: Explored) -> int:
    classes = explored.collection.classes
    return usual_clusters(len(explored.collection), None if classes is None else len(classes))


def _vectors(explored: Explored, of: str) -> Tensor:
    collection = explored.collection
    if of == "images":
        return collection.vectors
    if collection.concepts is None:
        raise Refused("this model has no concepts", 409)
    rows = _concept_rows(explored)
    if len(rows) == len(collection):
        return collection.concepts
    return collection.concepts.view(len(collection), collection.tokens, -1)[torch.tensor(rows)].flatten(0, 1)


def _concept_rows(explored: Explored) -> list[int]:
    return evenly(len(explored.collection), max(1, _MOST_CONCEPTS // max(1, explored.collection.tokens)))


def _job(of: str, layout: str) -> str:
    return f"{layout} of {of}"


def _categories(values: Tensor, names: list[str]) -> Answer:
    return as_json({"kind": "category", "names": names, "values": _base64(values.numpy().astype("<u2"))})


def _numbers(values: Tensor) -> Answer:
    finite = values[values.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    body: dict[str, Any] = {"kind": "number", "low": low, "high": high}
    span = high - low if math.isfinite(high - low) and high > low else 1.0
    scaled = ((values.double() - low) / span * 65_534).nan_to_num(nan=65_535, posinf=65_534, neginf=0)
    return as_json(body | {"values": _base64(scaled.round().numpy().astype("<u2"))})


def _base64(values: Any) -> str:
    return base64.b64encode(values.tobytes()).decode()


ENDPOINTS = (
    Endpoint("world", world),
    Endpoint("map/layouts", layouts, ("of",)),
    Endpoint("map/points", points, ("of", "layout")),
    Endpoint("map/patches", patch_points, ("layout",), most_bytes=JSON_BYTES),
    Endpoint("map/concept-rows", concept_rows),
    Endpoint("map/colour", colour, ("by", "clusters")),
)
