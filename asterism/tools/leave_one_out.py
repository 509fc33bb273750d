"""What to expect of a segmentation from examples: each example is segmented with the help of the others.

This chooses the head, the balance of the classes and the sharpness of the probabilities, and says which IoU to expect.

Examples are often alike: frames of one video, photographs of one place. New images are not that much like them, so a
quarter of the examples, those that look most like the one that is tested, do not help either. This makes the estimate
lower than for images that are exactly like the examples, and the choice better for those that are not.

With few examples the best of many settings is often the best by chance. So the plain vote is kept unless another
setting is better by more than one standard error of the difference between them (the jackknife's, over examples). And
the expected IoU of an example is that of the setting which the other examples choose.

A class that occurs in one example only cannot be estimated: without that example, nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.images.masks import VOID
from asterism.ops.propagation import largest_upsampled
from asterism.ops.segmentation_metrics import confusion, scores
from asterism.tools.labelled_patches import LabelledPatches
from asterism.tools.patch_labellers import HeadName, balanced, frequencies, labeller

BALANCES = (0.0, 0.25, 0.5, 0.75, 1.0)
_SHARPNESSES = tuple(2 ** (power / 4) for power in range(-12, 13))
_FOLDS = 8  # groups of examples; up to this number, each example is left out alone
_ALIKE = 4  # one in so many examples is left out because it looks like the one that is tested
_MOST = 32  # examples that are tested, evenly spread over all

Setting = tuple[HeadName, float]  # head and balance
_Counts = Mapping[Setting, Int[Tensor, "n c c"]]  # pixels of each tested example, by label and prediction


@dataclass(frozen=True)
class Estimate:
    """The chosen settings, and what to expect of them."""

    head: HeadName
    balance: float
    sharpness: float
    iou: dict[int, float | None]  # in [0, 1], by class number; None: the class is in fewer than two examples
    error: float  # standard error of the mean IoU, from the differences between the examples
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
    """The best of these settings, of which the first is the plain one; None if there is nothing to compare with."""
    occurrences = torch.stack([example.present for example in memory.examples]).sum(dim=0)
    estimable = (occurrences >= 2).cpu()
    if len(memory.examples) < 2 or not estimable.any():
        return None
    left_out = {head: _left_out(memory, head, k, temperature) for head in heads}
    counts = {
        (head, balance): _counts(memory, found, balance) for head, found in left_out.items() for balance in balances
    }
    head, balance = chosen(counts, estimable)
    expected = unseen(counts, estimable)
    by_class = {
        int(number): float(value) if known else None
        for number, value, known in zip(memory.classes, scores(expected.sum(dim=0)).iou, estimable, strict=True)
    }
    by_head: dict[str, float] = {
        name: max(_mean(each.sum(dim=0), estimable) for (own, _), each in counts.items() if own == name)
        for name in heads
    }
    return Estimate(
        head=head,
        balance=balance,
        sharpness=_sharpness(memory, left_out[head], balance),
        iou=by_class,
        error=_spread(_without_each(expected, estimable)),
        by_head=by_head,
        tested=len(expected),
    )


def chosen(counts: _Counts, estimable: Bool[Tensor, " c"]) -> Setting:
    """The setting of the highest mean IoU, if it is clearly better than the first one."""
    plain = next(iter(counts))
    means = {setting: _mean(each.sum(dim=0), estimable) for setting, each in counts.items()}
    best = max(means, key=lambda setting: means[setting])
    if best == plain:
        return plain
    gains = [
        ours - theirs
        for ours, theirs in zip(
            _without_each(counts[best], estimable), _without_each(counts[plain], estimable), strict=True
        )
    ]
    return best if means[best] - means[plain] > _spread(gains) else plain


def unseen(counts: _Counts, estimable: Bool[Tensor, " c"]) -> Int[Tensor, "n c c"]:
    """Pixels of each example with the setting that the other examples choose.

    The setting that is best on some examples is also the luckiest on them, so their estimate would be too high.
    """
    tested = len(next(iter(counts.values())))
    if tested == 1:
        return counts[chosen(counts, estimable)]
    rows = []
    for number in range(tested):
        others = [other for other in range(tested) if other != number]
        setting = chosen({setting: each[others] for setting, each in counts.items()}, estimable)
        rows.append(counts[setting][number])
    return torch.stack(rows)


def _mean(counts: Int[Tensor, "c c"], estimable: Bool[Tensor, " c"]) -> float:
    """Mean IoU of the classes that can be estimated."""
    return float(scores(counts).iou[estimable].nan_to_num().mean())


def _without_each(counts: Int[Tensor, "n c c"], estimable: Bool[Tensor, " c"]) -> list[float]:
    """The mean IoU without each of the examples; with a single one, that of all."""
    total = counts.sum(dim=0)
    if len(counts) == 1:
        return [_mean(total, estimable)]
    return [_mean(total - each, estimable) for each in counts]


def _spread(values: Sequence[float]) -> float:
    """The jackknife's standard error, from values that each lack one example."""
    count, found = len(values), torch.tensor(values, dtype=torch.float64)
    return float(((count - 1) / count * (found - found.mean()).square().sum()).sqrt())


def _left_out(memory: LabelledPatches, head: HeadName, k: int, temperature: float) -> list[_LeftOut]:
    count = len(memory.examples)
    stride = -(-count // _MOST)
    tested = [number for number in range(0, count, stride) if memory.examples[number].known.any()]
    groups = [tested[first::_FOLDS] for first in range(min(_FOLDS, len(tested)))]
    similarity = _similarity(memory)
    found = []
    for group in groups:
        others = memory.part(helpers(memory, group, similarity))
        if not len(others.features):
            continue
        label = labeller(head, others, k, temperature)
        frequency = frequencies(others)
        found += [_LeftOut(number, label(memory.examples[number].features), frequency) for number in group]
    return found


def helpers(memory: LabelledPatches, group: Sequence[int], similarity: Float[Tensor, "n n"]) -> list[int]:
    """The examples that help to segment those of the group: without those most like them, while no class gets lost."""
    kept = [number for number in range(len(memory.examples)) if number not in group]
    by_similarity = sorted(kept, key=lambda number: -float(similarity[number, list(group)].max()))
    present = torch.stack([example.present for example in memory.examples])
    needed = present[list(group)].any(dim=0) & present[kept].any(dim=0)
    for number in by_similarity[: len(memory.examples) // _ALIKE]:
        fewer = [other for other in kept if other != number]
        if (present[fewer].any(dim=0) | ~needed).all():
            kept = fewer
    return kept


def _similarity(memory: LabelledPatches) -> Float[Tensor, "n n"]:
    """Cosine similarity of the examples' mean patches."""
    means = torch.stack([F.normalize(example.features, dim=1).mean(dim=0) for example in memory.examples])
    means = F.normalize(means, dim=1)
    return (means @ means.T).cpu()


def _counts(memory: LabelledPatches, found: Sequence[_LeftOut], balance: float) -> Int[Tensor, "n c c"]:
    """Pixels of each example that was left out, by label and prediction."""
    classes = len(memory.classes)
    rows = []
    for each in found:
        example = memory.examples[each.number]
        probabilities = balanced(each.probabilities, each.frequency, balance)
        maps = probabilities.T.reshape(classes, *example.grid).cpu()
        size = (example.places.shape[0], example.places.shape[1])
        rows.append(confusion(largest_upsampled(maps, size).long(), example.places.long(), classes, VOID))
    return torch.stack(rows)


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
