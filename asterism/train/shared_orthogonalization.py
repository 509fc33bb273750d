"""Muon's matrices, orthogonalised by all processes together.

On a CPU every process orthogonalises its share of the matrices and sends it to the others; on GPUs, where products are
cheap, every process orthogonalises all. Matrices of one shape, or of one shape and its transpose, share their products.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.ops.collectives import all_gather_rows, rank, world_size
from asterism.ops.orthogonal import multiplications, orthogonalize


def orthogonalize_all(stacks: Sequence[Float[Tensor, "_ _ _"]]) -> list[Float[Tensor, "_ _ _"]]:
    """`orthogonalize` of every stack of matrices, which all processes hold."""
    same: dict[torch.Size, list[int]] = {}  # numbers of the stacks of each shape, laid on its longer side
    for number, stack in enumerate(stacks):
        same.setdefault(_wide(stack).shape[1:], []).append(number)
    joined = (torch.cat([_wide(stacks[number]) for number in numbers]) for numbers in same.values())
    if world_size() > 1 and all(stack.device.type == "cpu" for stack in stacks):
        results: Iterable[Tensor] = _divided(list(joined))
    else:  # one shape at a time, to save memory
        results = (orthogonalize(_fast(matrices)).to(matrices.dtype) for matrices in joined)
    found: dict[int, Tensor] = {}
    for numbers, values in zip(same.values(), results, strict=True):
        for number, part in zip(numbers, torch.split(values, [len(stacks[n]) for n in numbers]), strict=True):
            found[number] = part.mT if _is_tall(stacks[number]) else part
    return [found[number] for number in range(len(stacks))]


def _is_tall(stack: Tensor) -> bool:
    return stack.shape[1] > stack.shape[2]


def _wide(stack: Tensor) -> Tensor:
    return stack.mT if _is_tall(stack) else stack


def _divided(stacks: Sequence[Float[Tensor, "_ _ _"]]) -> list[Float[Tensor, "_ _ _"]]:
    """The same matrices, each orthogonalised by the process with the least work."""
    shares = divide([(len(stack), _work(*stack.shape[1:])) for stack in stacks], world_size())
    sizes = [sum(len(rows) * stacks[number][0].numel() for number, rows in share.items()) for share in shares]
    sent = torch.zeros(max(sizes))
    place = 0
    for number, rows in shares[rank()].items():
        own = orthogonalize(stacks[number][rows]).flatten()
        sent[place : place + len(own)] = own
        place += len(own)
    found = [torch.empty_like(stack) for stack in stacks]
    for values, share in zip(all_gather_rows(sent[None]), shares, strict=True):
        place = 0
        for number, rows in share.items():
            size = len(rows) * found[number][0].numel()
            found[number][rows] = values[place : place + size].view(len(rows), *found[number].shape[1:])
            place += size
    return found


def divide(stacks: Iterable[tuple[int, int]], processes: int) -> list[dict[int, list[int]]]:
    """For each process, the matrices of each stack that it takes, so that all have about the same work.

    stacks: the number of matrices, and the work for each. The largest come first, to the process with the least work.

    >>> divide([(3, 1), (1, 4)], processes=2)
    [{1: [0]}, {0: [0, 1, 2]}]
    """
    shares: list[dict[int, list[int]]] = [{} for _ in range(processes)]
    totals = [0] * processes
    matrices = [(work, number, row) for number, (count, work) in enumerate(stacks) for row in range(count)]
    for work, number, row in sorted(matrices, key=lambda matrix: -matrix[0]):
        least = totals.index(min(totals))
        totals[least] += work
        shares[least].setdefault(number, []).append(row)
    return shares


def _work(rows: int, columns: int) -> int:
    """About the time for a matrix: its multiplications, and more if it is small, since small products waste some."""
    return multiplications(rows, columns) * (64 + min(rows, columns)) // min(rows, columns)


def _fast(matrices: Tensor) -> Tensor:
    """In bfloat16 on a GPU, as published; CPUs rarely multiply it fast."""
    return matrices.bfloat16() if matrices.device.type == "cuda" else matrices
