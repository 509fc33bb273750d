"""Bicubic interpolation as a matrix, for networks whose input size is known only when they run.

`F.interpolate` needs the new size as a number. Here it is the length of a tensor, so a recorded graph
(ONNX) contains the interpolation for every size.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# Keys' parameter a, as in torch: the kernel of Pillow when antialiased, OpenCV's otherwise.
_ANTIALIASED, _PLAIN = -0.5, -0.75
_REACH = 2  # the kernel is zero from this distance on, in samples


def antialiased_matrix(centres: Float[Tensor, " new"], old: int, step: Float[Tensor, ""]) -> Float[Tensor, "new {old}"]:
    """Weights of `old` samples for each new one; the kernel is widened when shrinking, and cut off at the border.

    centres: 0.5, 1.5, … of the new samples. step: old samples per new one.

    >>> from torch.nn.functional import interpolate
    >>> rows = torch.arange(12.0).view(6, 2)
    >>> shrunk = antialiased_matrix(torch.arange(4) + 0.5, 6, torch.tensor(1.5)) @ rows
    >>> torch.allclose(shrunk, interpolate(rows[None, None], (4, 2), mode="bicubic", antialias=True)[0, 0])
    True
    """
    samples = torch.ones_like(centres[:1]).expand(old).cumsum(0) - 0.5
    weights = _kernel((samples - (centres * step)[:, None]) / step.clamp(min=1), _ANTIALIASED)
    return weights / weights.sum(dim=1, keepdim=True)


def plain_matrix(centres: Float[Tensor, " new"], old: int, step: Float[Tensor, ""]) -> Float[Tensor, "new {old}"]:
    """The same with a kernel of constant width; samples at the border are repeated beyond it.

    >>> from torch.nn.functional import interpolate
    >>> rows = torch.arange(12.0).view(6, 2)
    >>> shrunk = plain_matrix(torch.arange(4) + 0.5, 6, torch.tensor(1.5)) @ rows
    >>> torch.allclose(shrunk, interpolate(rows[None, None], (4, 2), mode="bicubic")[0, 0])
    True
    """
    padded = torch.ones_like(centres[:1]).expand(old + 2 * _REACH).cumsum(0) - 0.5 - _REACH
    weights = _kernel(padded - (centres * step)[:, None], _PLAIN)
    first = weights[:, : _REACH + 1].sum(dim=1, keepdim=True)
    last = weights[:, -_REACH - 1 :].sum(dim=1, keepdim=True)
    if old == 1:
        return torch.ones_like(first)
    return torch.cat([first, weights[:, _REACH + 1 : -_REACH - 1], last], dim=1)


def _kernel(distance: Float[Tensor, "new old"], a: float) -> Float[Tensor, "new old"]:
    """Keys' cubic convolution kernel."""
    x = distance.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x <= 1, near, torch.where(x < _REACH, far, torch.zeros_like(x)))
