"""A decoder from the frozen patch tokens of an encoder to pixels: how much of an image the tokens preserve."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.config import Config
from asterism.data import Source, Subset, evaluation_batches
from asterism.nn.decoder import PixelDecoder
from asterism.nn.encoder import Encoder
from asterism.nn.few_patches import FewPatches
from asterism.ops.patches import patchify, unpatchify
from asterism.ops.random import fold, generator
from asterism.ranges import Count, Few, NonNegative, Positive
from asterism.types import Tokens
from asterism.viz.bar import Bar

_GRAY = 0.5  # the decoder predicts the difference to it
_WARMUP = 0.05  # share of the steps


class PixelProbeConfig(Config):
    """The decoder of MAE, trained with the mean squared error of all pixels. The encoder stays frozen."""

    tokens: Count | None = None  # patches that the encoder and the decoder see; None: all
    steps: Count = 2000
    images: Count = 64  # of a step
    lr: Positive = 1e-3  # its peak; warm-up and cosine
    weight_decay: NonNegative = 0.05
    dim: Count = 512  # STELLAR's decoder: 512 channels, 6 blocks, 8 heads
    depth: Few = 6
    heads: Few = 8


class PixelProbe:
    """A frozen encoder and the decoder trained on it. Only patch tokens reach the decoder, not the class token."""

    def __init__(self, encoder: Encoder, config: PixelProbeConfig, side: int, seed: int) -> None:
        """side: pixels per side of the images."""
        few = None if config.tokens is None else FewPatches(encoder, config.tokens)
        self.encoder = few or encoder
        self.config = config
        self.patch_size = encoder.patch_size
        self.grid = (side // self.patch_size, side // self.patch_size)
        patches = self.grid[0] * self.grid[1]
        places = torch.arange(patches) if few is None else few.places(patches)
        self.tokens = len(places)
        self._device = next(encoder.parameters()).device
        self._places = places.to(self._device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            decoder = PixelDecoder(
                encoder.backbone.dim, self.grid, 3 * self.patch_size**2, config.dim, config.depth, config.heads
            )
        self.decoder = decoder.to(self._device)

    def fit(self, source: Source, resize: int, workers: int, seed: int) -> None:
        """Train the decoder on a source's images, each epoch in another order."""
        config = self.config
        optimizer = torch.optim.AdamW(
            self.decoder.parameters(), config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay
        )
        self.decoder.train()
        batches = self._batches(source, resize, workers, seed)
        with Bar("training the decoder", config.steps) as bar:
            for step in range(config.steps):
                images = next(batches).to(self._device)
                for group in optimizer.param_groups:
                    group["lr"] = config.lr * _schedule(step, config.steps)
                target = patchify(images.float() / 255, self.patch_size)
                loss = F.mse_loss(self._predict(images), target)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                bar.advance(1)
        self.decoder.eval()

    @torch.no_grad()
    def reconstruct(self, images: UInt8[Tensor, "b 3 s s"]) -> Float[Tensor, "b 3 s s"]:
        """Images in [0, 1] from their tokens."""
        return unpatchify(self._predict(images), self.grid, self.patch_size).clamp(0, 1)

    def _predict(self, images: UInt8[Tensor, "b 3 s s"]) -> Float[Tensor, "b n p"]:
        with torch.no_grad():
            patches = self.encoder.encode(images).patches.float()
        tokens = Tokens(cls=None, patches=patches, registers=patches[:, :0], grid=self.grid)
        return self.decoder(tokens, self._places.expand(len(images), -1)) + _GRAY

    def _batches(self, source: Source, resize: int, workers: int, seed: int) -> Iterator[Tensor]:
        side, epoch = self.grid[0] * self.patch_size, 0
        while True:
            order = torch.randperm(len(source), generator=generator(fold(seed, epoch))).tolist()
            shuffled = Subset(source, order)
            size = min(self.config.images, len(source))
            for batch in evaluation_batches(shuffled, side, resize=resize, batch_size=size, workers=workers):
                yield batch.images
            epoch += 1


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to zero, as a share of the peak."""
    warmup = max(1, round(_WARMUP * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
