"""What to expect of a segmentation from examples: each example is segmented with the help of the others.

The head, the balance of the classes and the sharpness of the probabilities are chosen this way, and the IoU that it
gives is the IoU to expect. Since the best of some settings is reported, it is slightly optimistic. A class that occurs
in one example only cannot be estimated: without that example, nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.images.masks import VOID
from asterism.ops.propagation import largest_upsampled
from asterism.ops.segmentation_metrics import confusion, scores
from asterism.tools.labelled_patches import LabelledPatches
from asterism.tools.patch_labellers import HeadName, balanced, frequencies, labeller

BALANCES = (0.0, 0.25, 0.5, 0.75, 1.0)
_SHARPNESSES = tuple(2 ** (power / 4) for power in range(-12, 13))
_FOLDS = 8  # groups of examples; up to this number, each example is left out alone
_MOST = 32  # examples that are tested, evenly spread over all


@dataclass(frozen=True)
class Estimate:
    """The chosen settings, and what they give on examples that were left out."""

    head: HeadName
    balance: float
    sharpness: float
    iou: dict[int, float | None]  # in [0, 1], by class number; None: the class is in fewer than two examples
    by_head: dict[str, float]  # mean IoU of the best setting of each head
    tested: int

    @property
    def mean(self) -> float:
        known = [value for value in self.iou.values() if value is not None]
        return sum(known) / len(known)


@dataclass(frozen=True)
class _LeftOut:
    """An example with the probabilities of the patches according to the others."""

    number: int
    probabilities: Float[Tensor, "n c"]
    frequency: Float[Tensor, " c"]  # in the others


def estimate(
    memory: LabelledPatches, heads: Sequence[HeadName], balances: Sequence[float], k: int, temperature: float
) -> Estimate | None:
    """The best of these settings by the mean IoU of the classes; None if there is nothing to compare with."""
    occurrences = torch.stack([example.present for example in memory.examples]).sum(dim=0)
    estimable = (occurrences >= 2).cpu()
    if len(memory.examples) < 2 or not estimable.any():
        return None
    best: tuple[float, HeadName, float, Tensor, list[_LeftOut]] | None = None
    by_head: dict[str, float] = {}
    for head in heads:
        found = _left_out(memory, head, k, temperature)
        for balance in balances:
            iou = scores(_counts(memory, found, balance)).iou
            mean = float(iou[estimable].mean())
            by_head[head] = max(mean, by_head.get(head, 0.0))
            if best is None or mean > best[0]:
                best = (mean, head, balance, iou, found)
    assert best is not None
    _, head, balance, iou, found = best
    by_class = {
        int(number): float(value) if known else None
        for number, value, known in zip(memory.classes, iou, estimable, strict=True)
    }
    return Estimate(head, balance, _sharpness(memory, found, balance), by_class, by_head, len(found))


def _left_out(memory: LabelledPatches, head: HeadName, k: int, temperature: float) -> list[_LeftOut]:
    count = len(memory.examples)
    stride = -(-count // _MOST)
    tested = [number for number in range(0, count, stride) if memory.examples[number].known.any()]
    groups = [tested[first::_FOLDS] for first in range(min(_FOLDS, len(tested)))]
    found = []
    for group in groups:
        others = memory.part([number for number in range(count) if number not in group])
        if not len(others.features):
            continue
        label = labeller(head, others, k, temperature)
        frequency = frequencies(others)
        found += [_LeftOut(number, label(memory.examples[number].features), frequency) for number in group]
    return found


def _counts(memory: LabelledPatches, found: Sequence[_LeftOut], balance: float) -> Int[Tensor, "c c"]:
    """Pixels by label and prediction, over all examples that were left out."""
    classes = len(memory.classes)
    total = torch.zeros(classes, classes, dtype=torch.int64)
    for each in found:
        example = memory.examples[each.number]
        probabilities = balanced(each.probabilities, each.frequency, balance)
        maps = probabilities.T.reshape(classes, *example.grid).cpu()
        size = (example.places.shape[0], example.places.shape[1])
        total += confusion(largest_upsampled(maps, size).long(), example.places.long(), classes, VOID)
    return total


def _sharpness(memory: LabelledPatches, found: Sequence[_LeftOut], balance: float) -> float:
    """The exponent that makes the mean probability of the chosen classes equal to the share of them that is right.

    Maximum likelihood would not do: balanced probabilities are not those of the frequencies that the labels have.
    """

    def excess(sharpness: float) -> float:
        total = torch.zeros(())
        for each in found:
            example = memory.examples[each.number]
            made = balanced(each.probabilities, each.frequency, balance, sharpness)
            confidence, place = made[example.known].max(dim=1)
            right = example.shares[example.known].gather(1, place[:, None])[:, 0]
            total += (confidence - right).sum().cpu()
        return abs(float(total))

    return min(_SHARPNESSES, key=excess)
