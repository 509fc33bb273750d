"""The method behind nano-stellar: STELLAR whose queries are disturbed while it trains.

    q_j           the learned query of slot j, σ the standard deviation of all queries in each channel, without gradient
    q_j + ½ σ ε   what the network sees of it, ε ~ N(0, 1) for every image and view

With learned queries alone a token is above all its slot (lab/results.md). Noise makes slots exchangeable in part, and
features better. Without it the encoder is STELLAR's, and so are file, concepts and maps.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from asterism.methods.base import MethodConfig
from asterism.methods.stellar import Stellar, StellarConfig
from asterism.nn.backbone import BackboneConfig
from asterism.ranges import NonNegative
from asterism.types import Batch, Losses, Progress


class NoisyStellarConfig(StellarConfig):
    """Settings of STELLAR, and the noise."""

    name: Literal["noisy_stellar"] = "noisy_stellar"  # type: ignore[assignment]

    noise: NonNegative = 0.5  # in units of σ


class NoisyStellar(Stellar):
    """STELLAR with a hook where the tokens enter the first block."""

    Config: ClassVar[type[MethodConfig]] = NoisyStellarConfig

    def __init__(self, config: NoisyStellarConfig, backbone: BackboneConfig) -> None:
        super().__init__(config, backbone)
        self.draws = torch.Generator()  # on the host; seeded in every step
        self.noise = config.noise
        network: Any = self.backbone.network
        network.norm_pre.register_forward_pre_hook(self.disturbed)

    def disturbed(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        """The sequence of class token, registers and patches, with noise on the registers."""
        (x,) = inputs
        if not self.training:
            return inputs
        network: Any = self.backbone.network
        sigma = network.reg_token[0].std(dim=0).detach()
        noise = torch.randn(len(x), self.backbone.registers, x.shape[-1], generator=self.draws).to(x)
        first = int(self.backbone.has_cls)
        last = first + self.backbone.registers
        return (torch.cat([x[:, :first], x[:, first:last] + self.noise * sigma * noise, x[:, last:]], dim=1),)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        self.draws.manual_seed(int(batch.keys.sum() & 0x7FFFFFFF))
        return super().loss(batch, progress)
