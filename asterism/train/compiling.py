"""Compilation of the parts of a network that take most of a step: transformer blocks and the MLPs of heads.

Losses are functions, not parts of the network; `asterism.ops.compilable` compiles them.

Each part is compiled as one graph; code that torch cannot compile is an error here, not a silent slow path. Blocks of
the same shape share their compiled code. The choice of masked patches depends on the data and stays outside. Heads get
as many rows as there are masked patches, and are compiled for any number. Names of parameters and the contents of
checkpoints do not change.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from asterism.nn.heads import ProjectionHead

# Variants of one block: sizes of views × student and teacher × stochastic depth. torch's limit, 8, is too low.
_VARIANTS = 64


def compile_parts(module: nn.Module, backend: str = "inductor") -> int:
    """Compile the parts of students and teachers in place, and return how many there are."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VARIANTS)
    blocks, heads = list(_blocks(module)), list(_heads(module))
    for block in blocks:
        block.compile(fullgraph=True, dynamic=False, backend=backend)
    for head in heads:
        head.compile(fullgraph=True, backend=backend)
    return len(blocks) + len(heads)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for part in module.modules():
        blocks = getattr(part, "blocks", None)
        if isinstance(blocks, nn.Sequential | nn.ModuleList):
            yield from blocks


def _heads(module: nn.Module) -> Iterator[nn.Module]:
    return (part.mlp for part in module.modules() if isinstance(part, ProjectionHead))
