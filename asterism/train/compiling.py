"""Compilation of the parts of a network that take most of a step: transformer blocks and the MLPs of heads.

Losses are functions, not parts of the network; `asterism.ops.compilable` compiles them.

Each part is compiled as one graph; code that torch cannot compile is an error here, not a silent slow path. Blocks of
the same shape share their compiled code. What depends on the data, such as the choice of masked patches, stays outside.
Names of parameters and the contents of checkpoints do not change.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from asterism.nn.heads import ProjectionHead

# Variants of one block: sizes of views × student and teacher × stochastic depth. torch's limit, 8, is too low.
_VARIANTS = 64


def compile_parts(module: nn.Module, **options: str) -> int:
    """Compile the parts in place, with options of `torch.compile`, and return how many there are."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VARIANTS)
    parts = list(compiled_parts(module))
    for part in parts:
        part.compile(fullgraph=True, dynamic=False, **options)
    return len(parts)


def replay_parts(module: nn.Module) -> int:
    """Compile the parts, record their kernels as CUDA graphs, and replay these: one launch per part.

    A replay writes to the same memory as the one before. So every step begins with `begin_replays`, and keeps no output
    of a part, only what is computed from it.
    """
    return compile_parts(module, mode="reduce-overhead")


def begin_replays() -> None:
    """What the parts returned before may be overwritten from now on."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def compiled_parts(module: nn.Module) -> Iterator[nn.Module]:
    """Blocks of transformers, and MLPs of heads, of students and teachers."""
    for part in module.modules():
        blocks = getattr(part, "blocks", None)
        if isinstance(blocks, nn.Sequential | nn.ModuleList):
            yield from blocks
        if isinstance(part, ProjectionHead):
            yield part.mlp
