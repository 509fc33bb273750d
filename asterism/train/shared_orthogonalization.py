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
from asterism.ops.orthogonal import orthogonalize


def orthogonalize_all(stacks: Sequence[Float[Tensor, "_ _ _"]]) -> list[Float[Tensor, "_ _ _"]]:
    """`orthogonalize` of every stack of matrices, which all processes hold."""
    wide = [stack.mT if _is_tall(stack) else stack for stack in stacks]
    shapes = dict.fromkeys(stack.shape[1:] for stack in wide)
    same = [[stack for stack in wide if stack.shape[1:] == shape] for shape in shapes]
    found = _orthogonalize_each([torch.cat(some) for some in same])
    split = (torch.split(values, [len(stack) for stack in some]) for values, some in zip(found, same, strict=True))
    parts = {shape: iter(some) for shape, some in zip(shapes, split, strict=True)}
    wide = [next(parts[stack.shape[1:]]) for stack in wide]
    return [values.mT if _is_tall(stack) else values for values, stack in zip(wide, stacks, strict=True)]


def _is_tall(stack: Tensor) -> bool:
    return stack.shape[1] > stack.shape[2]


def _orthogonalize_each(stacks: Sequence[Float[Tensor, "_ _ _"]]) -> list[Float[Tensor, "_ _ _"]]:
    """The work is divided among the processes if that saves time."""
    if world_size() == 1 or any(stack.device.type != "cpu" for stack in stacks):
        return [orthogonalize(_fast(stack)).to(stack.dtype) for stack in stacks]
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

    stacks: the number of matrices, and the work for each. The largest are dealt first, always to whoever has least.

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
    """About the time that `orthogonalize` needs: multiplications, and more for small matrices, which waste some."""
    short, long = sorted((rows, columns))
    return short * (short + 64) * min(10 * long + 5 * short, 2 * long + 17 * short)


def _fast(matrices: Tensor) -> Tensor:
    """In bfloat16 on a GPU, as published; CPUs rarely multiply it fast."""
    return matrices.bfloat16() if matrices.device.type == "cuda" else matrices
