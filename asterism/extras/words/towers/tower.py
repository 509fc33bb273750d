"""The contract of a text tower."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class TextShortened(UserWarning):
    """A text is longer than the tower's context."""


class TextTower(nn.Module, ABC):
    """Texts to vectors in the space that images are aligned with.

    A tower that is `frozen` has no parameters and no state: it is loaded again by its name, and its `fingerprint` shows
    whether it is the same one.
    """

    frozen: ClassVar[bool]
    dim: int  # channels of a text's vector
    context: int  # tokens of the longest text
    fingerprint: str

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    @abstractmethod
    def tokens(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Int[Tensor, "n t"]]:
        """Token numbers and a mask, 1 at tokens and 0 at padding, on the CPU; long texts are truncated."""

    @abstractmethod
    def forward(self, tokens: Int[Tensor, "n t"], mask: Int[Tensor, "n t"]) -> Float[Tensor, "n e"]:
        """One vector per text, not normalised."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What `asterism.extras.words.towers.build.rebuild_tower` needs to make it again, besides its weights."""

    @torch.no_grad()
    def encode(self, texts: Sequence[str], batch_size: int = 256) -> Float[Tensor, "n e"]:
        """Unit vectors, without gradients, on the tower's device."""
        parts = [
            nn.functional.normalize(self(*self.on_device(*self.tokens(texts[i : i + batch_size]))).float(), dim=1)
            for i in range(0, len(texts), batch_size)
        ]
        return torch.cat(parts)

    def on_device(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        place = next(iter([*self.parameters(), *self.buffers()])).device
        return tuple(tensor.to(place) for tensor in tensors)

    def say_shortened(self, text: str, length: int) -> None:
        """Warn of the first text that is too long, and of no other."""
        if not self._said:
            self._said = True
            start = text if len(text) <= 60 else f"{text[:59]}…"
            warnings.warn(
                TextShortened(
                    f"{start!r} has {length} tokens and the text tower reads {self.context}: this text and all others "
                    "that are too long are truncated"
                ),
                stacklevel=3,
            )
