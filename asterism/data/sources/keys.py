"""The names of a source's images, without decoding any."""

from __future__ import annotations

from asterism.data.sources.folder import Folder
from asterism.data.sources.shards import Shards
from asterism.data.sources.source import Source
from asterism.data.sources.subset import Subset


def keys_of(source: Source) -> list[str]:
    """The key that each sample has. Sources without files number their images."""
    if isinstance(source, (Folder, Shards)):
        return [source.key(index) for index in range(len(source))]
    if isinstance(source, Subset):
        keys = keys_of(source.source)
        return [keys[index] for index in source.indices.tolist()]
    inner = getattr(source, "source", None)
    return [str(index) for index in range(len(source))] if inner is None else keys_of(inner)
