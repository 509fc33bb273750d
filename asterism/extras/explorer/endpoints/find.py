"""Finding images: by an image, a sentence, near-duplicates, outliers, and the most typical of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from asterism.errors import UserError
from asterism.extras.explorer.answers import Answer, Refused, as_json
from asterism.extras.explorer.approximate import ExactSearch
from asterism.extras.explorer.endpoints.endpoint import PICTURE_BYTES, Endpoint
from asterism.extras.explorer.endpoints.image import MOST_FOUND
from asterism.extras.explorer.endpoints.map import MOST_CLUSTERS
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.query import Query
from asterism.images.bad_image import BadImage
from asterism.images.decode import decode

_MOST_GROUPS = 60
_LONGEST_SENTENCE = 300  # characters


def like_row(explored: Explored, query: Query) -> Answer:
    """The images most similar to one of the collection; `model=1` uses the second model."""
    row, count = explored.row(query), _count(query)
    if explored.model(query) is not explored.models[0]:
        vectors = explored.other_vectors()
        similarity, rows = ExactSearch(vectors).nearest(vectors[row][None].float(), count + 1)
    else:
        similarity, rows = explored.search.nearest(explored.collection.vectors[row][None].float(), count + 1)
    return _found(pair for pair in _pairs(similarity, rows) if pair[0] != row)


def like_file(explored: Explored, query: Query) -> Answer:
    """The images most similar to one that was dropped on the page. It is decoded in memory and not kept."""
    try:
        image = decode(query.body, "the dropped file")
    except BadImage as error:
        raise Refused(f"cannot read the image: {error.reason}", 415) from None
    vector = normalize(explored.models[0].look(image).features.cls, dim=1)
    return _found(_pairs(*explored.search.nearest(vector, _count(query))))


def like_sentence(explored: Explored, query: Query) -> Answer:
    """The images that a sentence describes best, for models aligned with text."""
    sentence = query.text("sentence", _LONGEST_SENTENCE)
    try:
        vector = explored.models[0].text_vectors([sentence])
    except UserError as error:
        raise Refused(str(error), 409) from None
    return _found(_pairs(*explored.text_search.nearest(vector, _count(query))))


def duplicates(explored: Explored, query: Query) -> Answer:
    """Groups of images that are almost the same."""
    least = query.number("least", 0.5, 1.0, 0.98)
    groups = explored.neighbourhood().duplicates(least, _MOST_GROUPS)
    return as_json({"groups": [[_item(row, value) for row, value in group[:MOST_FOUND]] for group in groups]})


def outliers(explored: Explored, query: Query) -> Answer:
    """The images least similar to their nearest neighbours."""
    density = explored.neighbourhood().density
    order = density.argsort()[: _count(query)].tolist()
    return _found((row, float(density[row])) for row in order)


def typical(explored: Explored, query: Query) -> Answer:
    """The images nearest to the centre of a cluster."""
    count = query.integer("clusters", 1, min(MOST_CLUSTERS, len(explored.collection)))
    cluster = query.integer("cluster", 0, count - 1)
    return _found(explored.clusters(count).typical(cluster, _count(query)))


def _count(query: Query) -> int:
    return query.integer("count", 1, MOST_FOUND, 48)


def _pairs(similarity: Tensor, rows: Tensor) -> list[tuple[int, float]]:
    return list(zip(rows[0].tolist(), similarity[0].tolist(), strict=True))


def _found(pairs: Iterable[tuple[int, float]]) -> Answer:
    return as_json({"items": [_item(row, value) for row, value in pairs]})


def _item(row: int, similarity: float) -> dict[str, Any]:
    return {"row": row, "similarity": round(similarity, 4)}


ENDPOINTS = (
    Endpoint("find/row", like_row, ("row", "count", "model")),
    Endpoint("find/file", like_file, ("count",), most_bytes=PICTURE_BYTES),
    Endpoint("find/sentence", like_sentence, ("sentence", "count")),
    Endpoint("find/duplicates", duplicates, ("least",)),
    Endpoint("find/outliers", outliers, ("count",)),
    Endpoint("find/typical", typical, ("clusters", "cluster", "count")),
)
