"""Edits of the concepts of an image, and the image reconstructed from them."""

from __future__ import annotations

from dataclasses import replace

from asterism.errors import UserError
from asterism.extras.explorer.answers import Answer, Refused, as_picture
from asterism.extras.explorer.endpoints.endpoint import JSON_BYTES, Endpoint
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.query import Query
from asterism.tools.reconstruct import Edit, Move, edited
from asterism.viz.concepts import reconstruction_quality
from asterism.viz.pictures import magnified, to_uint8

_LEAST = 256  # pixels of a picture


def reconstruction(explored: Explored, query: Query) -> Answer:
    """The image after an edit: concepts swapped with another image's, then dropped, then moved.

    The header has the quality against the original image, in decibels.
    """
    model = explored.models[0]
    if not model.reconstructs:
        raise Refused(f"{model.name} has no decoder, so images cannot be reconstructed from its concepts", 409)
    fields, last = query.json(), len(explored.collection) - 1
    seen = explored.see(model, fields.integer("row", 0, last))
    features, top = seen.features, model.tokens - 1
    grid = max(features.grid)
    moves = tuple(
        Move(m.integer("token", 0, top), m.integer("down", -grid, grid), m.integer("right", -grid, grid))
        for m in fields.objects("move", model.tokens)
    )
    drop = tuple(fields.integers("drop", 0, top, model.tokens))
    swaps = fields.objects("swap", model.tokens)
    if swaps:
        other = explored.see(model, fields.integer("other", 0, last)).features
        assert features.sparse is not None
        assert other.sparse is not None
        sparse = features.sparse.clone()
        for swap in swaps:
            sparse[:, swap.integer("token", 0, top)] = other.sparse[:, swap.integer("theirs", 0, top)]
        features = replace(features, sparse=sparse)
    try:
        made = model.reconstruct(*edited(features, Edit(drop=drop, move=moves), None))
    except UserError as error:
        raise Refused(str(error), 409) from None
    quality = float(reconstruction_quality(made, seen.pixels)[0])
    return as_picture(
        magnified(to_uint8(made), _LEAST)[0], **{"X-Quality": f"{quality:.2f}", "Cache-Control": "no-store"}
    )


ENDPOINTS = (Endpoint("edit", reconstruction, most_bytes=JSON_BYTES),)
