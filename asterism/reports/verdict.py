"""What a run achieved, in one sentence at the top of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asterism.evals.result import Result
from asterism.train.online_quality import verdict as training_verdict

_NEIGHBOURS = "top1_k20"
_CLEAR = 1.0  # points of accuracy; a smaller difference is not a lead
_NAMES = {"untrained": "the untrained network", "pixels": "raw pixels"}


def verdict(results: Sequence[Result], metrics: Sequence[Mapping[str, Any]]) -> str:
    """From k-NN on held-out images with its baselines, where they were measured, else from what training logged."""
    classified = next((result for result in results if _is_compared(result)), None)
    if classified is None:
        return training_verdict(metrics) or ""
    return f"{_classification(classified)}{_reconstruction(results)}."


def _is_compared(result: Result) -> bool:
    return result.protocol == "knn" and _NEIGHBOURS in result.values and bool(result.baselines)


def _classification(result: Result) -> str:
    own = result.values[_NEIGHBOURS]
    others = {_NAMES.get(name, name): values[_NEIGHBOURS] for name, values in result.baselines.items()}
    ahead = all(own > value + _CLEAR for value in others.values())
    opening = "Learned without labels" if ahead else "Not ahead of everything it was compared with"
    compared = " and ".join(f"{value:.1f} % with {name}" for name, value in others.items())
    return (
        f"{opening}: the 20 nearest neighbours name the class of {own:.1f} % of {result.test.images:,} held-out "
        f"images, against {compared}"
    )


def _reconstruction(results: Sequence[Result]) -> str:
    rebuilt = next((result for result in results if "psnr" in result.values), None)
    return "" if rebuilt is None else f"; images rebuilt from its concepts alone reach {rebuilt.values['psnr']:.1f} dB"
