"""Detects a collapse of the representation early, and warns with its likely causes.

Each logged record is checked for these kinds of collapse:

    rank       the effective rank of the features has fallen well below its initial value
    spread     the features of all images are nearly the same
    uniform    targets are uniform over the prototypes, or a loss stays at ln K: images are not distinguished
    one        targets and predictions agree on a single prototype for every image

A condition has to hold for several consecutive records. Their number depends on the length of the run: a run of a
hundred steps is warned within its first half, and one noisy record of a long run does not trigger a warning.
"""

from __future__ import annotations

from collections.abc import Mapping

_RANK_SHARE = 0.5  # of the initial rank; collapsing runs fall to 0.4 in 150 steps, good ones end above 0.55
_LEAST_RANK = 1.5
_LEAST_STD = 0.02
_FLAT = 0.005  # relative distance to ln K that counts as uniform
_NOTHING = 0.02  # of ln K: entropies and divergences below this count as zero
_SOON, _LATE = 5, 30  # records that a condition must hold for, at most
_FIRST_STEP, _FIRST_RANK, _IN_A_ROW, _WARNED = "first step", "first rank", "in a row: ", "warned: "  # in a checkpoint


class CollapseWatch:
    """Checks each logged record, and warns once per kind of collapse.

    uniform_terms: ln K of each loss term that equals ln K for uniform targets and predictions.
    records: how many records the run will log; None: unknown, as for a long run.
    """

    def __init__(self, uniform_terms: Mapping[str, float], records: int | None) -> None:
        self._uniform = uniform_terms
        self._soon = _SOON if records is None else min(_SOON, max(2, records // 20))
        self._late = _LATE if records is None else min(_LATE, max(3, records // 4))
        self._start: tuple[int, float] | None = None
        self._in_a_row: dict[str, int] = {}
        self._warned: set[str] = set()

    def begin(self, step: int, rank: float) -> None:
        """Set the initial effective rank of the features, measured before training has changed them much."""
        self._start = (step, rank)

    @property
    def has_begun(self) -> bool:
        """Whether the initial rank is known."""
        return self._start is not None

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps, so that a resumed run warns as if it had not been interrupted."""
        start = {} if self._start is None else dict(zip((_FIRST_STEP, _FIRST_RANK), self._start, strict=True))
        counts = {f"{_IN_A_ROW}{kind}": count for kind, count in self._in_a_row.items()}
        return start | counts | {f"{_WARNED}{kind}": 1 for kind in self._warned}

    def restore(self, state: Mapping[str, float]) -> None:
        """The opposite of `state`."""
        if _FIRST_STEP in state:
            self._start = (int(state[_FIRST_STEP]), state[_FIRST_RANK])
        self._in_a_row = {key.removeprefix(_IN_A_ROW): int(n) for key, n in state.items() if key.startswith(_IN_A_ROW)}
        self._warned = {key.removeprefix(_WARNED) for key in state if key.startswith(_WARNED)}

    def check(self, step: int, record: Mapping[str, float]) -> str | None:
        """A warning for the user, or None."""
        for kind, (holds, patience, message) in self._conditions(step, record).items():
            self._in_a_row[kind] = self._in_a_row.get(kind, 0) + 1 if holds else 0
            if self._in_a_row[kind] >= patience and kind not in self._warned:
                self._warned.add(kind)
                return message
        return None

    def _conditions(self, step: int, record: Mapping[str, float]) -> dict[str, tuple[bool, int, str]]:
        """By kind: whether it holds in this record, for how many records it must hold, and the warning."""
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
        """Conditions on the entropy of the targets. ln K is that of the first uniform term, the image-level one."""
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
        f"the features lose rank: {first:.0f} → {now:.0f} in {steps} steps. They use fewer and fewer dimensions, and "
        "this rarely recovers. Usual causes are a learning rate that is too high this early, initial weights that are "
        "too small for a narrow network, and a teacher that follows the student too fast. Try half the optim.lr"
        f"{rate}, a longer optim.warmup_epochs, backbone.init=width, a method.momentum closer to 1, or larger crops"
    )


def _same_features(rank: float | None, std: float | None) -> str:
    return (
        "the features have collapsed: all images of a batch get nearly the same embedding "
        f"(effective rank {rank or 0:.2f}, spread {std or 0:.3f}). Stop the run, and try a lower optim.lr, a longer "
        "optim.warmup_epochs, a method.momentum closer to 1 or a larger batch"
    )


def _flat_loss(name: str, ln_k: float) -> str:
    return (
        f"the loss {name!r} stays at ln K = {ln_k:.3f}: targets and predictions are uniform, and nothing is learned. "
        "Try a lower teacher temperature, a higher learning rate or fewer prototypes"
    )


def _uniform_targets(entropy: float, ln_k: float) -> str:
    return (
        f"the targets are uniform: their entropy is {entropy:.3f}, and the maximum is ln K = {ln_k:.3f}. For the "
        "teacher all images are equally close to all prototypes. Try a lower warmup_teacher_temp and teacher_temp, "
        "backbone.init=width or fewer prototypes"
    )


def _one_prototype(entropy: float) -> str:
    return (
        f"teacher and student assign every image to the same prototype (entropy of the targets {entropy:.3f}), which "
        "is a trivial solution. Try a higher teacher temperature, a lower optim.lr or a method.momentum closer to 1"
    )
