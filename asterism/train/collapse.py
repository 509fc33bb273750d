"""Naming a collapse in plain words while there is still time to stop."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

_PATIENCE = 30  # logged records in a row before a flat loss counts
_FLAT = 0.005  # distance to ln K, relative, that counts as flat
_RANK = 1.5
_STD = 0.02


class CollapseWatch:
    """Looks at each logged record; says something once per kind of collapse."""

    def __init__(self, uniform_terms: Mapping[str, float]) -> None:
        self._uniform = uniform_terms
        self._losses: dict[str, deque[float]] = {name: deque(maxlen=_PATIENCE) for name in uniform_terms}
        self._low_spread = 0
        self._said: set[str] = set()

    def look(self, record: Mapping[str, float]) -> str | None:
        """A warning for the user, or None."""
        for name, losses in self._losses.items():
            losses.append(record[f"loss/{name}"])
        narrow = record.get("effective_rank", 99.0) < _RANK or record.get("feature_std", 1.0) < _STD
        self._low_spread = self._low_spread + 1 if narrow else 0
        if self._low_spread >= 5:
            return self._once(
                "rank",
                "the features have collapsed: images of a batch get nearly the same embedding "
                f"(effective rank {record.get('effective_rank', 0):.2f}, spread {record.get('feature_std', 0):.3f}). "
                "Try a lower learning rate, a longer warm-up, a higher teacher momentum or a larger batch",
            )
        for name, uniform in self._uniform.items():
            if self._is_flat(name, uniform):
                return self._once(
                    name,
                    f"the loss {name!r} stands at ln K = {uniform:.3f}: targets and predictions are uniform, and "
                    "nothing is learned. Try a lower teacher temperature, a higher learning rate or fewer prototypes",
                )
        return None

    def _is_flat(self, name: str, uniform: float) -> bool:
        losses = self._losses[name]
        return len(losses) == _PATIENCE and all(abs(loss - uniform) < _FLAT * uniform for loss in losses)

    def _once(self, kind: str, message: str) -> str | None:
        if kind in self._said:
            return None
        self._said.add(kind)
        return message
