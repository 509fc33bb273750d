"""Published text towers, frozen: a network of another library, which is neither trained nor saved with the probe."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.extras.words.towers.tower import TextTower

EXTRA = "text"


class FrozenTower(TextTower):
    """A network with its tokenizer. It is not a submodule, so that it has no place in optimisers and checkpoints."""

    frozen = True

    def __init__(self, name: str, network: nn.Module, context: int) -> None:
        super().__init__()
        self.name = name
        self.context = context
        self._outside = [network.eval().requires_grad_(False)]
        self.register_buffer("place", torch.empty(0), persistent=False)  # follows `to`
        self.fingerprint = fingerprint_of(network)
        self.dim = int(self(*self.tokens(["a"])).shape[1])

    @property
    def network(self) -> Any:
        """On the device of this module."""
        return self._outside[0].to(self.on_device(torch.empty(0))[0].device)

    @abstractmethod
    def vectors(self, tokens: Int[Tensor, "n t"], mask: Int[Tensor, "n t"]) -> Float[Tensor, "n e"]:
        """One vector per text, as its library makes it."""

    @torch.no_grad()
    def forward(self, tokens: Int[Tensor, "n t"], mask: Int[Tensor, "n t"]) -> Float[Tensor, "n e"]:
        return self.vectors(tokens, mask).float()

    def describe(self) -> dict[str, Any]:
        return {"kind": "frozen", "name": self.name, "fingerprint": self.fingerprint}


def fingerprint_of(network: nn.Module) -> str:
    """A hash of the weights, under their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in network.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def longest(texts: Sequence[str], lengths: Sequence[int]) -> tuple[str, int]:
    """The first of the longest texts, and its length."""
    place = max(range(len(texts)), key=lambda i: lengths[i])
    return texts[place], lengths[place]
