"""Opening what is to be explored, with everything checked before the server starts."""

from __future__ import annotations

from pathlib import Path

from asterism.data import Source
from asterism.errors import UserError
from asterism.extras.explorer.collection import Collection, collection_of_index, collection_of_source
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.labels import LOG
from asterism.extras.explorer.model import ExploredModel
from asterism.extras.explorer.table import LABELS, write_labels


def open_explored(
    models: list[ExploredModel], images: Source | None, index: Path | None, data: str | None, writes: Path | None
) -> Explored:
    """The images of an index, or else of a source, as one or two models see them.

    data: where the images of the index are, if they have moved. writes: the only folder that may be written to.
    """
    if writes is not None and writes.exists() and not writes.is_dir():
        raise UserError(f"{writes} is a file; --allow-writes takes a folder")
    encoder = models[0].encoder
    collection: Collection
    if index is not None:
        collection = collection_of_index(index, data, encoder)
    else:
        assert images is not None
        collection = collection_of_source(images, encoder)
    if writes is not None:
        writes.mkdir(parents=True, exist_ok=True)
        if (writes / LABELS).exists() and not (writes / LOG).exists():
            raise UserError(
                f"{writes / LABELS} would be replaced, and there is no {LOG} next to it with the same labels; move it "
                "away, or choose another folder"
            )
    explored = Explored(collection, models, writes)
    if explored.labels.by_key():
        write_labels(explored)  # a kill may have left a table without the last change
    return explored
