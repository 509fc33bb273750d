"""Self-organizing prototypes: groups of remembered embeddings that vote together (SOP, SOVE, MaSSL).

A prototype is an anchor row of a memory with its nearest rows, its members. Member j of prototype i gives w_j of its
vote to i and, in most forms, spreads the rest over the other K − 1 prototypes; with D the members and Y these shares,

    P(u) = softmax(u Dᵀ / τ) Y.

Every form of Y here has two different entries per row only, c_j + o_j in the member's own column and o_j elsewhere, so
with e_j = exp(u·D_j / τ)

    p_i = (Σ_{j∈G_i} c_j e_j + Σ_j o_j e_j) / Z,   Z = Σ_j (c_j + K o_j) e_j,

a grouped sum and two scalars per row: neither Y nor the product with it is ever formed. (Z is the softmax's own sum
where the rows of Y sum to one, and the renormalisation where they do not.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Contribution = Literal["similarity", "constant", "block-diagonal", "one-hot"]

# Logits held at once, a compromise between the size of a matrix product and the memory around it (16 MB in float32).
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


@torch.no_grad()
def supports_beside_anchors(memory: Float[Tensor, "n d"], anchors: Int[Tensor, " k"], neighbours: int) -> Supports:
    """Each anchor's nearest rows among those that are no anchors, by falling similarity, then the anchor itself."""
    similarity, index = nearest_rows(memory, memory[anchors], neighbours, excluded=anchors)
    itself = (memory[anchors] ** 2).sum(dim=1, keepdim=True)
    return Supports(torch.cat([index, anchors[:, None]], 1), torch.cat([similarity, itself], 1), anchors)


@torch.no_grad()
def supports_in_memory(memory: Float[Tensor, "n d"], anchors: Int[Tensor, " k"], members: int) -> Supports:
    """Each anchor's nearest rows in the whole memory: itself first, other anchors possibly among them."""
    similarity, index = nearest_rows(memory, memory[anchors], members)
    return Supports(index, similarity, anchors)


@torch.no_grad()
def nearest_rows(
    memory: Float[Tensor, "n d"],
    queries: Float[Tensor, "q d"],
    count: int,
    excluded: Int[Tensor, " x"] | None = None,
) -> tuple[Float[Tensor, "q {count}"], Int[Tensor, "q {count}"]]:
    """Similarities and places of the `count` memory rows most similar to each query, by falling similarity."""
    if count == 0:
        return queries.new_zeros(len(queries), 0), queries.new_zeros(len(queries), 0, dtype=torch.int64)
    found = []
    with torch.autocast(memory.device.type, enabled=False):
        for chunk in torch.split(queries, max(1, _CHUNK // len(memory))):
            similarity = chunk @ memory.T
            if excluded is not None:
                similarity[:, excluded] = -torch.inf
            found.append(similarity.topk(count, dim=1))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


# ------------------------------------------------------------------------------------------------------- contributions


def member_weights(supports: Supports, smoothing: float) -> Float[Tensor, "k m"]:
    """The w of the similarity forms: cosine to the anchor, 1 − smoothing for the anchor itself; within [1/K, 1].

    A smaller w would mean that a member speaks for every other prototype rather than for its own.
    """
    itself = supports.index == supports.anchors[:, None]
    weights = torch.where(itself, 1 - smoothing, supports.similarity)
    return weights.clamp(1 / len(supports.anchors), 1)


def organize(
    memory: Float[Tensor, "n d"], supports: Supports, contribution: Contribution, smoothing: float
) -> Prototypes:
    """Prototypes of the given members, whose votes count as `contribution` says.

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
    return Prototypes(memory[supports.index.T], own.T.contiguous(), everywhere.T.contiguous())


def permuted_blocks(memory: Float[Tensor, "n d"], permutation: Int[Tensor, " n"], size: int) -> list[Prototypes]:
    """MaSSL's tasks: a random order of the memory cut into blocks, each row a prototype; a remainder is left out."""
    whole = permutation[: len(permutation) // size * size]
    ones = memory.new_ones(1, size)
    return [Prototypes(memory[block][None], ones, torch.zeros_like(ones)) for block in torch.split(whole, size)]


# ------------------------------------------------------------------------------------------------------- probabilities


def log_probabilities(rows: Float[Tensor, "b d"], prototypes: Prototypes, temperature: float) -> Float[Tensor, "b k"]:
    """The log P of every row, differentiable with respect to the rows; for targets and for looking at predictions."""
    with torch.autocast(rows.device.type, enabled=False):
        chunks = [_log_votes(chunk.float(), prototypes, temperature)[0] for chunk in _chunks(rows, prototypes)]
    return torch.cat(chunks)


def grouped_cross_entropy(
    rows: Float[Tensor, "b d"], targets: Float[Tensor, "b k"], prototypes: Prototypes, temperature: float
) -> Float[Tensor, " b"]:
    """−Σ_i q_i log p_i of every row. Gradients reach the rows only; targets need not sum to one (folded view pairs)."""
    assert not targets.requires_grad, "targets come from a teacher and carry no gradient"
    return _CrossEntropy.apply(rows, targets, prototypes, temperature)


class _CrossEntropy(torch.autograd.Function):
    """The members have no gradient and the rows do not mix, so the gradient is known before the backward pass:

    ∂(−Σ q log p)/∂z_j = e_j / Z · ((c_j + K o_j) Σ_i q_i − c_j q_{i(j)} / p_{i(j)} − o_j Σ_i q_i / p_i).

    Each chunk of logits makes its part of it and is forgotten; what is kept is one vector of the rows' size.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, targets: Tensor, prototypes: Prototypes, temperature: float
    ) -> Float[Tensor, " b"]:
        entropies, gradients = [], []
        with torch.autocast(rows.device.type, enabled=False):
            goals = torch.split(targets, _rows_per_chunk(prototypes))
            for chunk, goal in zip(_chunks(rows, prototypes), goals, strict=True):
                log_p, exponentials, total = _log_votes(chunk.float(), prototypes, temperature)
                entropies.append(-(goal * log_p).sum(dim=1))
                if ctx.needs_input_grad[0]:
                    gradients.append(_gradient(goal, log_p, exponentials, total, prototypes, temperature))
        if gradients:
            ctx.save_for_backward(torch.cat(gradients))
            ctx.dtype = rows.dtype
        return torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *outward: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (outward[0][:, None] * gradient).to(ctx.dtype), None, None, None


def _log_votes(
    rows: Float[Tensor, "b d"], prototypes: Prototypes, temperature: float
) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b m k"], Float[Tensor, " b"]]:
    """The log p, e relative to the row's largest, and Z on the same scale."""
    m, k, _ = prototypes.members.shape
    logits = rows @ prototypes.members.flatten(0, 1).T
    logits = (logits - logits.detach().amax(dim=1, keepdim=True)).div_(temperature)
    exponentials = logits.exp().view(-1, m, k)
    shares = torch.stack([prototypes.everywhere, prototypes.own + k * prototypes.everywhere])
    everywhere, total = (exponentials.flatten(1) @ shares.flatten(1).T).unbind(dim=1)
    votes = everywhere[:, None] + sum(prototypes.own[j] * exponentials[:, j] for j in range(m))
    # Only a form without smoothing can reach the floor, for votes e⁻⁸⁷ times weaker than the strongest.
    log_p = votes.clamp_min(torch.finfo(votes.dtype).tiny).log() - total[:, None].log()
    return log_p, exponentials, total


def _gradient(
    targets: Float[Tensor, "b k"],
    log_p: Float[Tensor, "b k"],
    exponentials: Float[Tensor, "b m k"],
    total: Float[Tensor, " b"],
    prototypes: Prototypes,
    temperature: float,
) -> Float[Tensor, "b d"]:
    """∂(−Σ q log p)/∂u. Overwrites `exponentials`."""
    ratio = targets * torch.exp(-log_p)
    mass, ratios = targets.sum(dim=1, keepdim=True), ratio.sum(dim=1, keepdim=True)
    for j, (own, everywhere) in enumerate(zip(prototypes.own, prototypes.everywhere, strict=True)):
        pull = mass * (own + prototypes.count * everywhere) - ratios * everywhere
        exponentials[:, j] *= pull.addcmul_(own, ratio, value=-1)
    gradient = exponentials.flatten(1) @ prototypes.members.flatten(0, 1)
    return gradient / (temperature * total[:, None])


def _chunks(rows: Float[Tensor, "b d"], prototypes: Prototypes) -> tuple[Tensor, ...]:
    return torch.split(rows, _rows_per_chunk(prototypes))


def _rows_per_chunk(prototypes: Prototypes) -> int:
    return max(1, _CHUNK // prototypes.own.numel())
