"""The result of a run in one sentence, compared with its start and with raw pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {
    "knn": "k-NN accuracy on held-out training images",
    "view_retrieval": "the share of images recognised in another view",
}
_NOISE = 2.0  # percentage points by which two measurements of the same features may differ

_TRY = (
    "Try more steps (trainer.steps), optim.name=muon if the network is small and has AdamW, half or twice the "
    "optim.lr, and check effective_rank and the entropies in `asterism report`"
)


def verdict(records: Sequence[Mapping[str, Any]]) -> str | None:
    """The verdict from the logged records; None if nothing was measured at the start or at the end."""
    for name, meaning in NAMES.items():
        values = [record[name] for record in records if name in record]
        started = next((record for record in records if record["step"] == 0 and name in record), None)
        if started is not None and len(values) > 1:
            return _sentence(meaning, started[name], values[-1], started.get(f"{name}_pixels"))
    return None


def _sentence(meaning: str, start: float, end: float, pixels: float | None) -> str:
    change = f"{meaning} went from {start:.1f} % at the start to {end:.1f} %"
    if end < start - _NOISE:
        return f"Not learned: {change}. {_TRY}"
    if end <= start + _NOISE:
        return f"No clear gain: {change}. {_TRY}"
    if pixels is None:
        return f"Learned: {change}"
    if end > pixels + _NOISE:
        return f"Learned: {change}; raw pixels reach {pixels:.1f} %"
    behind = f"Learned, but not ahead of raw pixels ({pixels:.1f} %): {change}"
    return f"{behind}. Train longer (trainer.steps, trainer.minutes)"
