"""An encoder that several requests use: one at a time, remembering the images looked at last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.errors import UserError
from asterism.images.centre_crop import center_square
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.text_encoder import TextEncoder
from asterism.types import Features
from asterism.viz.affinity import looked_at

K = TypeVar("K")
V = TypeVar("V")

_REMEMBERED = 48  # images with their features


@dataclass(frozen=True)
class Seen:
    """An image as the encoder sees it, and its features; on the CPU."""

    pixels: UInt8[Tensor, "1 3 s s"]
    features: Features


class ExploredModel:
    """An encoder, its name, and its run folder if it has one."""

    def __init__(self, name: str, encoder: Encoder, run: Path | None) -> None:
        self.name = name
        self.run = run
        self.encoder = encoder.eval()
        self._lock = threading.Lock()
        self._seen: Recent[int, Seen] = Recent(_REMEMBERED)
        self._attention: Recent[int, Tensor] = Recent(_REMEMBERED)

    @property
    def tokens(self) -> int:
        """Concepts per image; 0 if there are none or they have no place."""
        encoder = self.encoder
        return encoder.backbone.registers if isinstance(encoder, ConceptEncoder) and encoder.localization else 0

    @property
    def reconstructs(self) -> bool:
        return isinstance(self.encoder, ConceptEncoder) and self.encoder.reconstruction is not None and self.tokens > 0

    @property
    def reads_text(self) -> bool:
        return isinstance(self.encoder, TextEncoder)

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of an image."""
        with self._lock, torch.no_grad():
            size = self.encoder.image_size
            return self.encoder(self.encoder.normalise(torch.zeros(1, 3, size, size))).grid

    def see(self, row: int, load: Callable[[], UInt8[Tensor, "3 h w"]]) -> Seen:
        """The image of a row; `load` reads it if it is not remembered."""
        seen = self._seen.get(row)
        if seen is None:
            seen = self.look(load())
            self._seen.put(row, seen)
        return seen

    def look(self, image: UInt8[Tensor, "3 h w"]) -> Seen:
        """An image that need not be in the collection."""
        size = self.encoder.image_size
        pixels = center_square(image, size, size)[None]
        return Seen(pixels, self.encode(pixels))

    def encode(self, pixels: UInt8[Tensor, "b 3 s s"]) -> Features:
        with self._lock:
            found = self.encoder.encode(pixels)
        return Features(
            cls=found.cls.float().cpu(),
            patches=found.patches.float().cpu(),
            grid=found.grid,
            sparse=None if found.sparse is None else found.sparse.float().cpu(),
            where=None if found.where is None else found.where.float().cpu(),
        )

    def attention(self, row: int, seen: Seen) -> Float[Tensor, "heads h w"]:
        """The attention of each head of the last block."""
        maps = self._attention.get(row)
        if maps is None:
            with self._lock, torch.no_grad():
                pixels = self.encoder.normalise(seen.pixels)
                weights = self.encoder.backbone.attention(pixels)
            maps = looked_at(weights.cpu(), seen.features.grid, self.encoder.backbone.has_cls)[0]
            self._attention.put(row, maps)
        return maps

    @cached_property
    def heads(self) -> int:
        """Heads whose attention can be drawn; 0 for networks without an attention map."""
        size = self.encoder.image_size
        try:
            with self._lock, torch.no_grad():
                pixels = self.encoder.normalise(torch.zeros(1, 3, size, size))
                return int(self.encoder.backbone.attention(pixels).shape[1])
        except UserError:
            return 0

    def reconstruct(self, sparse: Float[Tensor, "1 r d"], where: Float[Tensor, "1 r h w"]) -> Float[Tensor, "1 3 H W"]:
        encoder = self.encoder
        if not isinstance(encoder, ConceptEncoder):
            raise UserError(f"{self.name} has no concepts to reconstruct an image from")
        weight: Any = next(encoder.parameters())
        with self._lock:
            return encoder.reconstruct(sparse.to(weight), where.to(weight)).float().cpu()

    def text_vectors(self, texts: list[str]) -> Float[Tensor, "n e"]:
        """Unit vectors of sentences, in the space of the collection's `aligned`."""
        encoder = self.encoder
        if not isinstance(encoder, TextEncoder):
            raise UserError(f"{self.name} is not aligned with text, so it cannot be searched by sentence")
        with self._lock, torch.no_grad():
            return encoder.encode_text(texts).float().cpu()

    def concept_names(self, features: Features, names: list[str]) -> list[str] | None:
        """The name that is nearest to each concept; None if the model does not compare concepts with text."""
        encoder = self.encoder
        if not isinstance(encoder, TextEncoder) or "sparse" not in encoder.aligned_from:
            return None
        assert features.sparse is not None
        assert features.where is not None
        cls, patches, sparse, where = (
            tensor.to(next(encoder.parameters()).device)
            for tensor in (features.cls, features.patches, features.sparse, features.where)
        )
        with self._lock:
            similarity = encoder.word_maps(Features(cls, patches, features.grid, sparse, where), names).concepts
        assert similarity is not None
        return [names[best] for best in similarity[0].argmax(dim=0).tolist()]


class Recent(OrderedDict[K, V]):
    """The most recently used values, safe for threads."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._guard = threading.Lock()

    def get(self, key: K, default: Any = None) -> Any:
        with self._guard:
            if key not in self:
                return default
            self.move_to_end(key)
            return self[key]

    def put(self, key: K, value: V) -> None:
        with self._guard:
            self[key] = value
            self.move_to_end(key)
            while len(self) > self._most:
                self.popitem(last=False)
