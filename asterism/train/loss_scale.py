"""Loss scaling for float16, whose smallest normal number, 6e-5, exceeds many gradients (Micikevicius et al., 2018).

The loss is multiplied by a factor before the backward pass and the gradients are divided by it after. If a gradient
overflows, the step is left out and the factor halved; after many good steps it is doubled. Gradients are averaged over
processes before they are checked, so all processes decide the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

_FIRST = 2.0**16
_GOOD_STEPS = 2000  # until the factor is doubled
_LEAST = 2.0**-14  # a smaller factor means that the gradients are not finite for another reason
_NAME = "loss_scale."


class LossScale:
    """The factor, and the number of good steps since it last changed."""

    def __init__(self) -> None:
        self.factor = _FIRST
        self.good = 0

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide the gradients by the factor, in place. It is a power of two, so nothing is rounded."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1 / self.factor)

    def accepts(self, finite: bool) -> bool:
        """Whether to make the step; adapts the factor. False only if a lower factor may help."""
        if finite:
            self.good += 1
            if self.good == _GOOD_STEPS:
                self.factor, self.good = 2 * self.factor, 0
            return True
        self.factor, self.good = self.factor / 2, 0
        return self.factor < _LEAST

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {f"{_NAME}factor": torch.tensor(self.factor), f"{_NAME}good": torch.tensor(self.good)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The opposite of `state`; a checkpoint of another precision has none."""
        if f"{_NAME}factor" in state:
            self.factor, self.good = float(state[f"{_NAME}factor"]), int(state[f"{_NAME}good"])
