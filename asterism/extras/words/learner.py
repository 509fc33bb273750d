"""The probe and the text tower as the training loop trains them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from asterism.extras.words.aligned import Alignment
from asterism.extras.words.pair_losses import sigmoid_pair_loss, softmax_pair_loss
from asterism.extras.words.pairs import PairBatch, Pairs
from asterism.extras.words.recipe import PairLossConfig
from asterism.nn.learner import Learner
from asterism.types import Losses, Progress

_AT_ONCE = 256  # images or texts


class Aligning(Learner[PairBatch]):
    """An alignment with its loss. Checkpoints contain the probe, scale and bias, and our own text tower."""

    def __init__(self, alignment: Alignment, loss: PairLossConfig) -> None:
        super().__init__()
        self.alignment = alignment
        self._loss = loss
        alignment.bias.requires_grad_(loss.name == "sigmoid")  # softmax has no use for it

    def loss(self, batch: PairBatch, progress: Progress) -> Losses:
        images = self.alignment.images_of_tokens(batch.tokens).float()
        texts = self._texts(batch.text).float()
        scale, bias = self.alignment.log_scale.exp(), self.alignment.bias
        if self._loss.name == "sigmoid":
            pair = sigmoid_pair_loss(images, texts, scale, bias, self._loss.chunk)
        else:
            pair = softmax_pair_loss(images, texts, scale, self._loss.chunk)
        metrics = {"scale": scale.detach(), "bias": bias.detach()}
        return Losses({"pair": pair}, metrics=metrics, embeddings=images.detach())

    @torch.no_grad()
    def vectors(self, pairs: Pairs, device: torch.device) -> tuple[Float[Tensor, "n e"], Float[Tensor, "s e"]]:
        """Unit vectors of all images and of all their sentences."""
        images = [
            self.alignment.images_of_tokens(pairs.tokens[rows].float().to(device))
            for rows in torch.split(pairs.rows, _AT_ONCE)
        ]
        texts = []
        for rows in torch.split(torch.arange(len(pairs.sentences.sentences)), _AT_ONCE):
            own = pairs.sentences.of(rows)
            moved = own.to(device) if isinstance(own, Tensor) else (own[0].to(device), own[1].to(device))
            texts.append(self._texts(moved))
        return torch.cat(images).float(), torch.cat(texts).float()

    def _texts(self, text: tuple[Tensor, Tensor] | Tensor) -> Float[Tensor, "b e"]:
        return text if isinstance(text, Tensor) else F.normalize(self.alignment.text(*text), dim=1)
