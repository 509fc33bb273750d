"""Compilation of the parts of a network that take most of a step: transformer blocks and the MLPs of heads.

Losses are functions, not parts of the network; `asterism.ops.compilable` compiles them.

Each part is compiled as one graph; code that torch cannot compile is an error here, not a silent slow path. Blocks of
the same shape share their compiled code. The choice of masked patches depends on the data and stays outside. Heads get
as many rows as there are masked patches, and are compiled for any number. Names of parameters and the contents of
checkpoints do not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from asterism.errors import UserError
from asterism.nn.heads import ProjectionHead
from asterism.nn.stochastic_depth import KeyedDropPath

# Variants of one block: sizes of views × student and teacher × stochastic depth. torch's limit, 8, is too low.
_VARIANTS = 64


def compile_parts(module: nn.Module, **options: Any) -> int:
    """Compile the parts in place, with options of `torch.compile`, and return how many there are."""
    return _compile_blocks(module, **options) + _compile_heads(module, **options)


def replay_blocks(module: nn.Module) -> int:
    """Compile the parts, record the kernels of blocks as CUDA graphs, and replay these: one launch per block.

    A replay writes to the same memory as the one before. So every step begins with `begin_replays`, and keeps no output
    of a block, only what is computed from it.
    """
    if any(isinstance(part, KeyedDropPath) for part in module.modules()):
        raise UserError(
            "trainer.compile = graphs cannot replay stochastic depth, which differs in every step; "
            "use backbone.drop_path=0 or trainer.compile=on"
        )
    return _compile_blocks(module, mode="reduce-overhead") + _compile_heads(module)


def begin_replays() -> None:
    """What blocks returned before may be overwritten from now on."""
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


def without_compiled_parts() -> contextlib.AbstractContextManager[Any]:
    """For what happens between steps, with other sizes: nothing is compiled or recorded for it."""
    return torch.compiler.set_stance("force_eager")


def compiled_parts(module: nn.Module) -> Iterator[nn.Module]:
    """Blocks of transformers, and MLPs of heads, of students and teachers."""
    yield from _blocks(module)
    yield from _heads(module)


def _compile_blocks(module: nn.Module, **options: Any) -> int:
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VARIANTS)
    blocks = list(_blocks(module))
    for block in blocks:
        block.compile(fullgraph=True, dynamic=False, **options)
    return len(blocks)


def _compile_heads(module: nn.Module, **options: Any) -> int:
    heads = list(_heads(module))
    for head in heads:
        head.compile(fullgraph=True, **options)
    return len(heads)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for part in module.modules():
        blocks = getattr(part, "blocks", None)
        if isinstance(blocks, nn.Sequential | nn.ModuleList):
            yield from blocks


def _heads(module: nn.Module) -> Iterator[nn.Module]:
    for part in module.modules():
        if isinstance(part, ProjectionHead):
            yield part.mlp
