"""Self-organizing prototypes: groups of stored embeddings that vote together (SOP, SOVE, MaSSL).

A prototype is an anchor row of a memory with its nearest rows, its members. Member j of prototype i gives w_j of its
vote to i and, in most forms, spreads the rest over the other K − 1 prototypes; with D the members and Y these shares,

    P(u) = softmax(u Dᵀ / τ) Y.

Every form of Y here has only two distinct entries per row, c_j + o_j in the member's own column and o_j elsewhere, so
with e_j = exp(u·D_j / τ)

    p_i = (Σ_{j∈G_i} c_j e_j + Σ_j o_j e_j) / Z,   Z = Σ_j (c_j + K o_j) e_j,

a grouped sum and two scalars per row: neither Y nor the product with it is ever formed. (Z is the softmax's own sum
where the rows of Y sum to one, and the renormalisation where they do not.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.ops.precision import at_least_float32

Contribution = Literal["similarity", "constant", "block-diagonal", "one-hot"]

# Logits held at once, a compromise between the size of a matrix product and memory (16 MB in float32).
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Supports:
    """The members of every prototype: rows of a memory, and how similar they are to their anchor."""

    index: Int[Tensor, "k m"]
    similarity: Float[Tensor, "k m"]  # cosine
    anchors: Int[Tensor, " k"]


@dataclass(frozen=True)
class Prototypes:
    """K prototypes of m members. Member-major, so that a group is summed by adding m contiguous rows."""

    members: Float[Tensor, "m k d"]
    own: Float[Tensor, "m k"]  # c: what a member gives its own prototype beyond what it gives every prototype
    everywhere: Float[Tensor, "m k"]  # o: what a member gives every prototype

    @property
    def count(self) -> int:
        return self.members.shape[1]


# ---------------------------------------------------------------------------------------------------- finding members


# Given a memory, the rows of the anchors, a count and excluded rows (or None), a search returns the `count` rows most
# similar to each anchor: cosines and row indices, in descending order, such as `neighbours.nearest_rows`.
Search = Callable[[Tensor, Tensor, int, Tensor | None], tuple[Tensor, Tensor]]


@torch.no_grad()
def supports_outside_anchors(
    memory: Float[Tensor, "n d"],
    anchors: Int[Tensor, " k"],
    neighbours: int,
    search: Search,
    drawn: Int[Tensor, " a"] | None = None,
) -> Supports:
    """Each anchor's nearest rows that are not anchors, by descending similarity, then the anchor itself.

    `drawn` are all rows that count as anchors, if only some of them become prototypes.
    """
    similarity, index = search(memory, anchors, neighbours, anchors if drawn is None else drawn)
    itself = (memory[anchors] ** 2).sum(dim=1, keepdim=True)
    return Supports(torch.cat([index, anchors[:, None]], 1), torch.cat([similarity, itself], 1), anchors)


@torch.no_grad()
def supports_in_memory(
    memory: Float[Tensor, "n d"], anchors: Int[Tensor, " k"], members: int, search: Search
) -> Supports:
    """Each anchor's nearest rows in the whole memory: itself first; the others may include anchors."""
    similarity, index = search(memory, anchors, members, None)
    return Supports(index, similarity, anchors)


# ------------------------------------------------------------------------------------------------------- contributions


def member_weights(supports: Supports, smoothing: float) -> Float[Tensor, "k m"]:
    """The w of the similarity forms: cosine to the anchor, 1 − smoothing for the anchor itself.

    Differs from the published code: a negative cosine counts as 0, as P(u) is not a distribution with negative shares.
    """
    itself = supports.index == supports.anchors[:, None]
    weights = torch.where(itself, 1 - smoothing, supports.similarity)
    return weights.clamp(0, 1)


def organize(
    memory: Float[Tensor, "n d"], supports: Supports, contribution: Contribution, smoothing: float
) -> Prototypes:
    """Prototypes of the given members, whose votes are weighted by `contribution`.

    similarity: w to the own prototype, (1 − w) / (K − 1) to each other one. constant: the same with w = 1 − smoothing
    for every member. block-diagonal: w to the own prototype, nothing to others, renormalised. one-hot: w = 1.
    """
    weights = member_weights(supports, smoothing)
    rest = len(weights) - 1
    if contribution == "similarity":
        everywhere = (1 - weights) / rest
        own = weights - everywhere
    elif contribution == "constant":
        everywhere = torch.full_like(weights, smoothing / rest)
        own = 1 - smoothing - everywhere
    elif contribution == "block-diagonal":
        own, everywhere = weights, torch.zeros_like(weights)
    else:
        own, everywhere = torch.ones_like(weights), torch.zeros_like(weights)
    return Prototypes(memory[supports.index.T.contiguous()], own.T.contiguous(), everywhere.T.contiguous())


def permuted_blocks(memory: Float[Tensor, "n d"], permutation: Int[Tensor, " p"], size: int) -> Iterator[Prototypes]:
    """MaSSL's tasks: distinct rows of the memory in random order, cut into blocks; each row is a prototype.

    A remainder that does not fill a block is left out, and the permutation may omit it.

    >>> memory = torch.nn.functional.normalize(torch.randn(50, 16), dim=1)
    >>> tasks = list(permuted_blocks(memory, torch.randperm(50)[:48], size=8))
    >>> len(tasks), tasks[0].count
    (6, 8)
    """
    ones = memory.new_ones(1, size)
    for start in range(0, len(permutation) - size + 1, size):
        block = permutation[start : start + size]
        yield Prototypes(memory[block][None], ones, torch.zeros_like(ones))


# ------------------------------------------------------------------------------------------------------- probabilities


def log_probabilities(rows: Float[Tensor, "b d"], prototypes: Prototypes, temperature: float) -> Float[Tensor, "b k"]:
    """Log-probabilities of every row, differentiable with respect to the rows.

    >>> from asterism.ops.neighbours import nearest_rows
    >>> memory = torch.nn.functional.normalize(torch.randn(100, 16), dim=1)
    >>> supports = supports_outside_anchors(memory, torch.randperm(100)[:10], 3, nearest_rows)
    >>> prototypes = organize(memory, supports, "similarity", smoothing=0.1)
    >>> u = torch.nn.functional.normalize(torch.randn(5, 16), dim=1)
    >>> log_probabilities(u, prototypes, temperature=0.1).exp().sum(dim=1).allclose(torch.ones(5))
    True
    """
    return _LogProbabilities.apply(rows, prototypes, temperature)


def grouped_cross_entropy(
    rows: Float[Tensor, "b d"], targets: Float[Tensor, "b k"], prototypes: Prototypes, temperature: float
) -> Float[Tensor, " b"]:
    """−Σ_i q_i log p_i of every row. Gradients reach the rows only; targets need not sum to one (folded view pairs).

    >>> memory = torch.nn.functional.normalize(torch.randn(100, 16), dim=1)
    >>> (block,) = permuted_blocks(memory, torch.randperm(100)[:20], size=20)
    >>> student, teacher = torch.nn.functional.normalize(torch.randn(2, 5, 16), dim=2)
    >>> targets = log_probabilities(teacher, block, temperature=0.04).exp()
    >>> grouped_cross_entropy(student.requires_grad_(), targets, block, temperature=0.1).shape
    torch.Size([5])
    """
    assert not targets.requires_grad, "targets come from a teacher and carry no gradient"
    return _CrossEntropy.apply(rows, targets, prototypes, temperature)


class _LogProbabilities(torch.autograd.Function):
    """Keeps only the rows, and recomputes the logits in the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, prototypes: Prototypes, temperature: float) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.prototypes, ctx.temperature = prototypes, temperature
        with torch.autocast(rows.device.type, enabled=False):
            return torch.cat([_votes(chunk, prototypes, temperature).log_p for chunk in _chunks(rows, prototypes)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outward: Tensor) -> tuple[Tensor, None, None]:
        (rows,), prototypes, temperature = ctx.saved_tensors, ctx.prototypes, ctx.temperature
        with torch.autocast(rows.device.type, enabled=False):
            gradients = [
                _gradient(_votes(chunk, prototypes, temperature), -goal, prototypes, temperature)
                for chunk, goal in zip(_chunks(rows, prototypes), _chunks(outward[0], prototypes), strict=True)
            ]
        return torch.cat(gradients).to(rows.dtype), None, None


class _CrossEntropy(torch.autograd.Function):
    """Members have no gradient and rows are independent, so the gradient is known before the backward pass.

    Each chunk of logits yields its part of the gradient and is freed; one tensor of the rows' size is kept.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, targets: Tensor, prototypes: Prototypes, temperature: float) -> Tensor:
        entropies, gradients = [], []
        with torch.autocast(rows.device.type, enabled=False):
            for chunk, goal in zip(_chunks(rows, prototypes), _chunks(targets, prototypes), strict=True):
                votes = _votes(chunk, prototypes, temperature)
                entropies.append(-(goal * votes.log_p).sum(dim=1))
                if ctx.needs_input_grad[0]:
                    gradients.append(_gradient(votes, goal, prototypes, temperature))
        if gradients:
            ctx.save_for_backward(torch.cat(gradients))
            ctx.dtype = rows.dtype
        return torch.cat(entropies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outward: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (outward[0][:, None] * gradient).to(ctx.dtype), None, None, None


@dataclass(frozen=True)
class _Votes:
    log_p: Float[Tensor, "b k"]
    exponentials: Float[Tensor, "b m k"]  # e of every member, relative to the row's largest
    total: Float[Tensor, " b"]  # Z, on the same scale


def _votes(rows: Float[Tensor, "b d"], prototypes: Prototypes, temperature: float) -> _Votes:
    logits = (at_least_float32(rows) / temperature) @ prototypes.members.flatten(0, 1).T
    exponentials = logits.sub_(logits.amax(dim=1, keepdim=True)).exp_().view(-1, *prototypes.own.shape)
    everywhere, total = (exponentials.flatten(1) @ _shares(prototypes).T).unbind(dim=1)
    votes = (prototypes.own * exponentials).sum(dim=1).add_(everywhere[:, None])
    # Only a form without smoothing can reach the floor, for votes e⁻⁸⁷ times weaker than the strongest.
    log_p = votes.clamp_min_(torch.finfo(votes.dtype).tiny).log_().sub_(total[:, None].log())
    return _Votes(log_p, exponentials, total)


def _gradient(
    votes: _Votes, targets: Float[Tensor, "b k"], prototypes: Prototypes, temperature: float
) -> Float[Tensor, "b d"]:
    """∂(−Σ q log p)/∂u, through the logits z (overwrites the exponentials):

    ∂/∂z_j = e_j / Z · ((c_j + K o_j) Σ_i q_i − c_j q_{i(j)} / p_{i(j)} − o_j Σ_i q_i / p_i).
    """
    ratio = targets * torch.exp(-votes.log_p)
    sums = torch.stack([-ratio.sum(dim=1), targets.sum(dim=1)], dim=1)
    pull = (sums @ _shares(prototypes)).view_as(votes.exponentials)
    pull.addcmul_(prototypes.own, ratio[:, None], value=-1)
    gradient = votes.exponentials.mul_(pull).flatten(1) @ prototypes.members.flatten(0, 1)
    return gradient / (temperature * votes.total[:, None])


def _shares(prototypes: Prototypes) -> Float[Tensor, "2 mk"]:
    """The members' o, and their c + K o: the total they give to all prototypes."""
    own, everywhere = prototypes.own.flatten(), prototypes.everywhere.flatten()
    return torch.stack([everywhere, own + prototypes.count * everywhere])


def _chunks(rows: Float[Tensor, "b x"], prototypes: Prototypes) -> tuple[Tensor, ...]:
    return torch.split(rows, max(1, _CHUNK // prototypes.own.numel()))
