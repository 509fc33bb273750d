"""Initialisations of a network's weights, by name.

    timm      truncated normals of std .02 at any width: as published for DINO, iBOT and their successors
    xavier    uniform with variance 2/(in + out) for every linear map and the patch embedding: as published for MAE
    width     variance 1/in: a unit-variance input gives a unit-variance output at any width

A std of .02 is about Xavier's at the width of a ViT-B (768: .036), and a fifth of it at width 96. There every branch
adds almost nothing to its tokens, the features of all images are nearly the same, and their rank collapses in the first
hundred steps. Narrow networks therefore start with `width` by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import nn

Init = Literal["timm", "xavier", "width"]

NARROW = 192  # channels of a ViT-T: the narrowest network that was published with std .02


def choose_init(requested: Init | Literal["auto"], dim: int, published: Init) -> Init:
    """The requested initialisation; "auto": the method's published one, but `width` below a ViT-T's width."""
    if requested != "auto":
        return requested
    return "width" if dim < NARROW else published


def initialise(network: nn.Module, init: Init) -> None:
    """Redraw the weights of a fresh timm network from torch's default generator; `timm` leaves them unchanged."""
    _DRAW[init](network)


def _keep(network: nn.Module) -> None:
    """Keep the weights that timm drew."""


@torch.no_grad()
def xavier_like_mae(network: nn.Module) -> None:
    """The initialisation of MAE's encoder and decoder.

    Linear maps are Xavier-uniform with zero bias. The patch embedding is too, as a matrix over the pixels of a patch,
    but its bias keeps torch's default. Norms are the identity; class and mask tokens are normal with std .02.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.flatten(1))
        if isinstance(module, nn.Linear):
            _zero_bias(module)
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
    for name, parameter in network.named_parameters():
        if name.rpartition(".")[2] in ("cls_token", "mask_token"):
            nn.init.normal_(parameter, std=0.02)


@torch.no_grad()
def _unit_variance(network: nn.Module) -> None:
    """Weights of variance 1/in. Norms give every layer of a block inputs of unit variance, and so have its outputs.

    The fused qkv needs no special case, as the variance depends on the inputs alone. Normalised pixels have unit
    variance over images, and so have the tokens that enter the first block.
    """
    for module in _maps(network):
        weight = module.weight.flatten(1)
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        _zero_bias(module)


def _maps(network: nn.Module) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def _zero_bias(module: Any) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)


_DRAW: Mapping[Init, Callable[[nn.Module], None]] = {"timm": _keep, "xavier": xavier_like_mae, "width": _unit_variance}
assert set(_DRAW) == set(get_args(Init))
