"""An encoder that sees only a few patches of every image: how much a number of tokens can carry."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.encoder import Encoder, features_of
from asterism.ops import streams
from asterism.ops.random import fold, uniform
from asterism.types import Features, Tokens


class FewPatches(Encoder):
    """The same `tokens` patches of every image, drawn once at random; the others are never embedded, as in MAE."""

    def __init__(self, encoder: Encoder, tokens: int) -> None:
        super().__init__(encoder.backbone, encoder.mean, encoder.std, encoder.image_size)
        if not encoder.backbone.takes_masks:
            raise UserError(
                f"tokens = {tokens}, but {encoder.backbone.architecture.name} cannot skip patches; leave tokens out, "
                "or choose a ViT"
            )
        self.tokens = tokens
        self.step = encoder.step

    def places(self, patches: int) -> Int[Tensor, " k"]:
        """The patches that the encoder sees, of so many, ascending."""
        if self.tokens > patches:
            raise UserError(f"tokens = {self.tokens}, but the images have only {patches} patches")
        key = torch.tensor([fold(streams.FewPatches.PLACES, patches)])
        return uniform(key, patches)[0].argsort()[: self.tokens].sort().values

    def seen(self, pixels: Float[Tensor, "b 3 h w"], needed: Literal["all", "none"] = "all") -> Tokens:
        """Tokens of the patches that the encoder sees; needed: as of `Backbone.forward`."""
        rows, columns = self.backbone.grid_of(pixels)
        keep = self.places(rows * columns).to(pixels.device).expand(len(pixels), -1)
        return self.backbone(pixels, keep=keep, needed=needed)

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        tokens = self.seen(pixels)
        return features_of(tokens, self.backbone.pool(tokens))

    def vector(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        return self.backbone.pool(self.seen(pixels, self.backbone.pooled_patches))


def seeing(encoder: Encoder, tokens: int | None) -> Encoder:
    """The encoder, or with a number of tokens one that sees only so many patches."""
    return encoder if tokens is None else FewPatches(encoder, tokens)
