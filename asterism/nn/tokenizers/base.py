"""The contract of a tokenizer, which maps images to grids of discrete codes and serves as a frozen target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.errors import UserError


class Tokenizer(nn.Module, ABC):
    """Images in [0, 1] to codes and back; one code per `factor` × `factor` pixels."""

    vocabulary: int
    factor: int

    @abstractmethod
    def encode(self, images: Float[Tensor, "b 3 H W"]) -> Int[Tensor, "b h w"]:
        """Codes in 0 … vocabulary − 1. Height and width must be multiples of `factor`."""

    @abstractmethod
    def decode(self, codes: Int[Tensor, "b h w"]) -> Float[Tensor, "b 3 H W"]:
        """Images in [0, 1]."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain values, including `kind`, from which `rebuild_tokenizer` rebuilds this module, without its weights."""

    def check_size(self, images: Float[Tensor, "b 3 H W"]) -> None:
        height, width = images.shape[-2:]
        if height % self.factor or width % self.factor:
            raise UserError(
                f"the tokenizer makes one code per {self.factor}×{self.factor} pixels and cannot divide an image of "
                f"{height}×{width}; use sides that are multiples of {self.factor}"
            )
