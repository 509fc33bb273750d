"""How long a run of a study trains: in steps, epochs, images, core-minutes or GPU hours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from asterism.config import Config
from asterism.errors import UserError
from asterism.ranges import Count, Positive
from asterism.train.recipe import Recipe

Kind = Literal["steps", "epochs", "images", "core_minutes", "gpu_hours"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_MEASURED = ("core_minutes", "gpu_hours")  # kinds whose number of steps depends on the machine
_UNITS = {"steps": "steps", "epochs": "epochs", "images": "images", "core_minutes": "min", "gpu_hours": "gpu-h"}


@dataclass(frozen=True)
class Budget:
    """One length of training."""

    kind: Kind
    amount: float

    @property
    def is_measured(self) -> bool:
        """Whether the number of steps depends on the speed of the machine."""
        return self.kind in _MEASURED

    @property
    def label(self) -> str:
        return f"{self.amount:g} {self.kind.replace('_', '-')}"

    @property
    def suffix(self) -> str:
        """The budget as part of a folder's name."""
        return f"{self.amount:g}{_UNITS[self.kind]}"

    @property
    def seconds(self) -> float:
        """Seconds of one core or one GPU."""
        return self.amount * (60 if self.kind == "core_minutes" else 3600)

    def overrides(self, recipe: Recipe) -> list[str]:
        """Trainer settings for a length that needs no measurement."""
        assert not self.is_measured
        if self.kind == "epochs":
            return ["trainer.steps=null", "trainer.minutes=null", f"trainer.epochs={self.amount:g}"]
        if self.kind == "steps":
            return steps_overrides(round(self.amount))
        batch = recipe.trainer.batch_size
        if not isinstance(batch, int):
            raise UserError(
                f"a budget of {self.amount:g} images needs a fixed batch size; add trainer.batch_size=64, or "
                "another number, to the settings"
            )
        return steps_overrides(math.ceil(self.amount / batch))


def steps_overrides(steps: int) -> list[str]:
    return ["trainer.epochs=auto", "trainer.minutes=null", f"trainer.steps={max(1, steps)}"]


class LengthConfig(Config):
    """At most one of these may be set; several values give several rows of the table. None: the recipe's length."""

    steps: tuple[Count, ...] | None = Field(default=None, min_length=1)  # of the optimiser
    epochs: tuple[Positive, ...] | None = Field(default=None, min_length=1)  # passes over the data
    images: tuple[Count, ...] | None = Field(default=None, min_length=1)  # seen, with repetitions
    core_minutes: tuple[Positive, ...] | None = Field(default=None, min_length=1)  # of training, without evaluations
    gpu_hours: tuple[Positive, ...] | None = Field(default=None, min_length=1)  # likewise

    @field_validator(*KINDS, mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | float) else value

    @field_validator(*KINDS)
    @classmethod
    def _positive(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and (min(value) <= 0 or len(set(value)) < len(value)):
            raise ValueError("give one or several different numbers above 0")
        return value

    @model_validator(mode="after")
    def _one_kind(self) -> LengthConfig:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise ValueError(f"two budgets are given ({' and '.join(given)}); choose one of {', '.join(KINDS)}")
        return self

    @property
    def budgets(self) -> list[Budget]:
        return [Budget(kind, amount) for kind in KINDS for amount in getattr(self, kind) or ()]
