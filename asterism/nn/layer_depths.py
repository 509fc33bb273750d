"""The depth of every parameter of a backbone, as timm counts it for layer-wise learning rates."""

from __future__ import annotations

from typing import Any

from asterism.nn.backbone import Backbone


def block_depths(backbone: Backbone) -> dict[str, int]:
    """Depths by parameter name: 0 for embeddings, tokens and positions, then one more for every block.

    The final norm belongs to the last block. Parameters without an entry, such as a norm after pooling, belong to the
    head, one deeper than all of these.
    """
    from timm.models import group_parameters

    network: Any = backbone.network
    matcher = network.group_matcher(coarse=False)
    depths = group_parameters(network, matcher, reverse=True)
    unmatched = _unmatched(network, matcher)
    found = {f"network.{name}": depth for name, depth in depths.items() if name not in unmatched}
    if getattr(backbone, "mask_token", None) is not None:
        found["mask_token"] = 0
    return found


def undecayed(backbone: Backbone) -> set[str]:
    """Names of parameters that timm excludes from weight decay: positions and tokens."""
    network: Any = backbone.network
    names = set(network.no_weight_decay())
    patterns = set(getattr(network, "no_weight_decay_keywords", set)())
    return {
        f"network.{name}"
        for name, _ in network.named_parameters()
        if name in names or any(pattern in name for pattern in patterns)
    }


def _unmatched(network: Any, matcher: Any) -> set[str]:
    """Parameters that no pattern of the network describes: timm counts them as its classifier."""
    import re

    patterns = []
    for expressions in matcher.values():
        for each in [expressions] if isinstance(expressions, str) else expressions:
            patterns.append(re.compile(each if isinstance(each, str) else each[0]))
    return {name for name, _ in network.named_parameters() if not any(p.match(name) for p in patterns)}
