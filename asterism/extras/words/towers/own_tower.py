"""Our own small text tower: word tokens and a few transformer blocks, trained together with the probe."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.extras.words.towers.tower import TextTower
from asterism.extras.words.towers.words import END, PADDING, WordTokens
from asterism.ranges import Count, Few

NAME = "own"


class TextConfig(Config):
    """The text tower, and the sizes of our own."""

    name: str = NAME  # own, a folder of transformers or open_clip, hf:ORGANISATION/MODEL, open_clip:MODEL:WEIGHTS
    vocabulary: Count = 16_384  # words with a number of their own
    context: Few = 64  # tokens
    dim: Count = 256  # channels, also of the space that texts and images share
    depth: Few = 4  # blocks
    heads: Few = 4


class OwnTower(TextTower):
    """A transformer over word tokens. The vector of a text is that of its end token, which sees all others."""

    frozen = False

    def __init__(self, config: TextConfig, words: Sequence[str]) -> None:
        super().__init__()
        if config.dim % config.heads:
            raise UserError(f"text.heads = {config.heads} does not divide text.dim = {config.dim}")
        self.config = config
        self.tokenizer = WordTokens(words)
        self.dim, self.context = config.dim, config.context
        # Of tokens and sizes: the weights are part of the state of the encoder that has this tower.
        self.fingerprint = hashlib.blake2b(repr((config, self.tokenizer.words)).encode(), digest_size=16).hexdigest()
        self.embed = nn.Embedding(len(self.tokenizer), config.dim)
        self.positions = nn.Parameter(torch.empty(config.context, config.dim))
        block = nn.TransformerEncoderLayer(
            config.dim, config.heads, 4 * config.dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, config.depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(config.dim)
        self.project = nn.Linear(config.dim, config.dim, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.02)
        for layer in self.blocks.layers:  # they are copies of one another
            for name, parameter in layer.named_parameters():
                if parameter.ndim > 1:
                    nn.init.trunc_normal_(parameter, std=0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

    def tokens(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Int[Tensor, "n t"]]:
        rows = [self._shortened(text) for text in texts]
        length = max(map(len, rows))
        made = torch.tensor([[*row, *[PADDING] * (length - len(row))] for row in rows])
        return made, (made != PADDING).long()

    def forward(self, tokens: Int[Tensor, "n t"], mask: Int[Tensor, "n t"]) -> Float[Tensor, "n e"]:
        x = self.embed(tokens) + self.positions[: tokens.shape[1]]
        x = self.blocks(x, src_key_padding_mask=mask == 0)
        return self.project(self.norm(x[torch.arange(len(x), device=x.device), mask.sum(dim=1) - 1]))

    def describe(self) -> dict[str, Any]:
        return {"kind": NAME, "config": self.config.model_dump(mode="json"), "words": list(self.tokenizer.words)}

    def _shortened(self, text: str) -> list[int]:
        row = self.tokenizer(text)
        if len(row) > self.context:
            self.say_shortened(text, len(row))
            row = [*row[: self.context - 1], END]
        return row


def rebuild_own_tower(description: Mapping[str, Any]) -> OwnTower:
    """The described tower; its weights have yet to be loaded."""
    return OwnTower(TextConfig.parse(description["config"], section="text"), description["words"])
