"""The names of a source's images, without decoding any."""

from __future__ import annotations

from asterism.data.folder import Folder
from asterism.data.shards import Shards
from asterism.data.source import Source
from asterism.data.subset import Subset


def keys_of(source: Source) -> list[str]:
    """The key that each sample has. Sources without files number their images."""
    if isinstance(source, (Folder, Shards)):
        return [source.key(index) for index in range(len(source))]
    if isinstance(source, Subset):
        keys = keys_of(source.source)
        return [keys[index] for index in source.indices.tolist()]
    inner = getattr(source, "source", None)
    return [str(index) for index in range(len(source))] if inner is None else keys_of(inner)
