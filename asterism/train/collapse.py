"""Naming a collapse in plain words while there is still time to stop.

What is looked for, in each logged record:

    rank       the effective rank of the features falls well below what it was at the start
    spread     the features of all images are nearly the same
    uniform    targets spread evenly over all prototypes, or a loss that stands at ln K: nothing is told apart
    one        targets and predictions agree on a single prototype for every image

A condition has to hold for several records in a row. How many depends on the length of the run, so that a run of a
hundred steps is warned within its first half and one noisy record of a long run is not enough.
"""

from __future__ import annotations

from collections.abc import Mapping

_RANK_SHARE = 0.6  # of the rank at the start; healthy runs keep four fifths and more
_LEAST_RANK = 1.5
_LEAST_STD = 0.02
_FLAT = 0.005  # relative distance to ln K that counts as uniform
_NOTHING = 0.02  # of ln K: entropies and divergences below count as zero


class CollapseWatch:
    """Looks at each logged record; says something once per kind of collapse.

    uniform_terms: ln K of each loss term that is ln K when nothing is told apart.
    records: how many records the run will log.
    """

    def __init__(self, uniform_terms: Mapping[str, float], records: int) -> None:
        self._uniform = uniform_terms
        self._soon = min(5, max(2, records // 20))
        self._late = min(30, max(3, records // 4))
        self._start: tuple[int, float] | None = None
        self._in_a_row: dict[str, int] = {}
        self._said: set[str] = set()

    def begin(self, step: int, rank: float) -> None:
        """The effective rank of the features before training has changed them much."""
        self._start = (step, rank)

    def look(self, step: int, record: Mapping[str, float]) -> str | None:
        """A warning for the user, or None."""
        for kind, (holds, patience, message) in self._conditions(step, record).items():
            self._in_a_row[kind] = self._in_a_row.get(kind, 0) + 1 if holds else 0
            if self._in_a_row[kind] >= patience and kind not in self._said:
                self._said.add(kind)
                return message
        return None

    def _conditions(self, step: int, record: Mapping[str, float]) -> dict[str, tuple[bool, int, str]]:
        """By kind: whether it holds in this record, for how many it must, and what to say then."""
        rank, std = record.get("effective_rank"), record.get("feature_std")
        narrow = (rank is not None and rank < _LEAST_RANK) or (std is not None and std < _LEAST_STD)
        found = {"spread": (narrow, self._soon, _same_features(rank, std))}
        if rank is not None and self._start is not None:
            first_step, first = self._start
            falls = rank < _RANK_SHARE * first
            found["rank"] = (falls, self._soon, _lost_rank(first, rank, step - first_step, record.get("lr")))
        for name, ln_k in self._uniform.items():
            flat = abs(record[f"loss/{name}"] - ln_k) < _FLAT * ln_k
            found[f"uniform {name}"] = (flat, self._late, _flat_loss(name, ln_k))
        found |= self._entropies(record)
        return found

    def _entropies(self, record: Mapping[str, float]) -> dict[str, tuple[bool, int, str]]:
        """Of the targets over the prototypes of the first uniform term, which is the one about whole images."""
        entropy, divergence = record.get("target_entropy"), record.get("kl")
        if not self._uniform or entropy is None:
            return {}
        ln_k = next(iter(self._uniform.values()))
        uniform = entropy > (1 - _FLAT) * ln_k
        single = divergence is not None and max(entropy, divergence) < _NOTHING * ln_k
        return {
            "uniform targets": (uniform, self._late, _uniform_targets(entropy, ln_k)),
            "one": (single, self._soon, _one_prototype(entropy)),
        }


def _lost_rank(first: float, now: float, steps: int, lr: float | None) -> str:
    rate = "" if lr is None else f" (now {lr:.1e})"
    return (
        f"the features lose rank: {first:.0f} → {now:.0f} in {steps} steps. Images are described by fewer and fewer "
        "independent numbers, which seldom recovers. Usual causes are a learning rate too high for so early, weights "
        "that start too small for a narrow network, and a teacher that follows too fast. Try half the optim.lr"
        f"{rate}, a longer optim.warmup_epochs, backbone.init=width, a method.momentum closer to 1, or larger crops"
    )


def _same_features(rank: float | None, std: float | None) -> str:
    return (
        "the features have collapsed: images of a batch get nearly the same embedding "
        f"(effective rank {rank or 0:.2f}, spread {std or 0:.3f}). Stop the run, and try a lower optim.lr, a longer "
        "optim.warmup_epochs, a method.momentum closer to 1 or a larger batch"
    )


def _flat_loss(name: str, ln_k: float) -> str:
    return (
        f"the loss {name!r} stands at ln K = {ln_k:.3f}: targets and predictions are uniform, and nothing is learned. "
        "Try a lower teacher temperature, a higher learning rate or fewer prototypes"
    )


def _uniform_targets(entropy: float, ln_k: float) -> str:
    return (
        f"the targets are uniform: their entropy is {entropy:.3f} of at most ln K = {ln_k:.3f}, so the teacher finds "
        "all images equally close to all prototypes. Try a lower warmup_teacher_temp and teacher_temp, "
        "backbone.init=width or fewer prototypes"
    )


def _one_prototype(entropy: float) -> str:
    return (
        f"teacher and student give every image the same prototype (entropy of the targets {entropy:.3f}), which any "
        "network can do. Try a higher teacher temperature, a lower optim.lr or a method.momentum closer to 1"
    )
