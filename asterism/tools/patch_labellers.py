"""From patch features to the probability of each class, learned from labelled patches: a vote, or a small trained head.

Both follow how often the classes occur in the examples: where almost everything is background, so is the answer. A
`Balanced` labeller divides the probabilities by the class's share of the examples to the power `balance`: 0 changes
nothing, 1 treats all classes as equally frequent. `sharpness` makes its probabilities as certain as they should be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.ops.logistic_regression import Linear, logistic_regression
from asterism.ops.neighbours import nearest
from asterism.tools.labelled_patches import LabelledPatches

HeadName = Literal["vote", "trained"]

_LEAST = 1e-6  # of a probability or a class's share, so that its logarithm is finite
_RIDGE = 0.01  # weight of the penalty on the squared weights of the head, for features of unit variance


@runtime_checkable
class Labeller(Protocol):
    """The probability of each class, by patch."""

    def __call__(self, tokens: Float[Tensor, "q d"]) -> Float[Tensor, "q c"]: ...


@dataclass(frozen=True)
class Vote:
    """The nearest patches of the examples give their labels, weighted by exp(cosine / temperature)."""

    memory: LabelledPatches
    k: int
    temperature: float

    def __call__(self, tokens: Float[Tensor, "q d"]) -> Float[Tensor, "q c"]:
        bank, labels = self.memory.features, self.memory.shares
        similarity, index = nearest(tokens.float(), bank, min(self.k, len(bank)))
        weights = torch.softmax(similarity / self.temperature, dim=1)
        return torch.einsum("qk,qkc->qc", weights, labels[index])


@dataclass(frozen=True)
class TrainedHead:
    """Multinomial logistic regression."""

    layer: Linear

    def __call__(self, tokens: Float[Tensor, "q d"]) -> Float[Tensor, "q c"]:
        return self.layer(tokens).softmax(dim=1)


def trained_head(memory: LabelledPatches) -> TrainedHead:
    (layer,) = logistic_regression(memory.features, memory.shares, [_RIDGE])
    return TrainedHead(layer)


def labeller(head: HeadName, memory: LabelledPatches, k: int, temperature: float) -> Labeller:
    return trained_head(memory) if head == "trained" else Vote(memory, k, temperature)


@dataclass(frozen=True)
class Balanced:
    """Another labeller's probabilities, corrected for the frequency of the classes in the examples."""

    base: Labeller
    frequency: Float[Tensor, " c"]  # share of each class in the examples
    balance: float
    sharpness: float = 1.0

    def __call__(self, tokens: Float[Tensor, "q d"]) -> Float[Tensor, "q c"]:
        return balanced(self.base(tokens), self.frequency, self.balance, self.sharpness)


def balanced(
    probabilities: Float[Tensor, "q c"], frequency: Float[Tensor, " c"], balance: float, sharpness: float = 1.0
) -> Float[Tensor, "q c"]:
    """(p / frequency^balance)^sharpness, normalised. The most probable class does not depend on the sharpness."""
    logits = probabilities.clamp_min(_LEAST).log() - balance * frequency.clamp_min(_LEAST).log()
    return (sharpness * logits).softmax(dim=1)


def frequencies(memory: LabelledPatches) -> Float[Tensor, " c"]:
    return memory.shares.mean(dim=0)
