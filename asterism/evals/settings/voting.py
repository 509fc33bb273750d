"""Settings of a vote among nearest neighbours."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from asterism.evals.base import ProtocolConfig
from asterism.ranges import Count, VoteTemperature


class VotingConfig(ProtocolConfig):
    """The number of voting neighbours, and the temperature of their weights."""

    k: tuple[Count, ...] = (10, 20, 100, 200)  # neighbours that vote; every value is reported
    temperature: VoteTemperature = 0.07  # of the votes; below 0.02 single precision overflows

    @field_validator("k", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("k")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("give one or several numbers of neighbours, each at least 1")
        return value

    def clipped(self, most: int, limit: str) -> list[str]:
        """A note if more neighbours were requested than there are."""
        too_many = [str(k) for k in self.k if k > most]
        return [f"k = {', '.join(too_many)} was reduced to {limit}"] if too_many else []
