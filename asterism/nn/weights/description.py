"""What the tensors of a file do not show: heads, pixel statistics, image size, epsilon, activation, pooling.

Each value is taken from the first source that states it: the user's options, settings in or next to the file, the timm
model that the user named, the conventions of the family. A convention that does not hold for certain is a guess. All
guesses of a file are in one warning, each with the option that corrects it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import field_validator

from asterism.config import Config, with_overrides
from asterism.errors import UserError
from asterism.nn.backbone import Pooling
from asterism.nn.timm_arguments import Activation
from asterism.ops.normalise import Triple
from asterism.ranges import Few, Number, Pixels, Positive

# as transformers names them → as timm does
_ACTIVATIONS: Mapping[str, Activation] = {
    **{name: name for name in get_args(Activation)},
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}


class GuessedWeights(UserWarning):
    """A file does not state all that its features depend on, and some of it was guessed."""


@dataclass(frozen=True)
class Description:
    """What a source states about a network; None where it states nothing."""

    heads: int | None = None
    eps: float | None = None  # of every LayerNorm
    activation: Activation | None = None  # of the MLPs
    pooling: Pooling | None = None
    mean: Triple | None = None  # of RGB in [0, 1]
    std: Triple | None = None
    image_size: int | None = None  # pixels per side of the images it was trained on

    def over(self, other: Description) -> Description:
        """This description, completed by another one."""
        mine = {field.name: getattr(self, field.name) for field in fields(Description)}
        return Description(**{name: getattr(other, name) if v is None else v for name, v in mine.items()})

    def missing(self) -> set[str]:
        return {field.name for field in fields(Description) if getattr(self, field.name) is None}


class WeightsOptions(Config):
    """The user's options for weights: the words of `asterism.load`, and of --weights-option on the command line."""

    heads: Few | None = None
    eps: Positive | None = None
    activation: Activation | None = None
    pooling: Pooling | None = None
    mean: tuple[Number, Number, Number] | None = None  # one number is for all channels
    std: tuple[Positive, Positive, Positive] | None = None
    image_size: Pixels | None = None
    family: str | None = None  # read the file as this family instead of detecting it
    name: str | None = None  # the timm model that the weights belong to
    which: Literal["teacher", "student"] = "teacher"  # if the file contains both
    decoder_heads: Few | None = None  # of STELLAR's decoder
    tokenizer: str | Path | None = None  # whose codes STELLAR's decoder predicts, if the file lacks it
    keys: dict[str, str] | None = None  # regular expression → replacement, for the names of the file's tensors

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _by_channel(cls, value: Any) -> Any:
        """Text has commas; one number is for all channels."""
        numbers = [float(part) for part in value.split(",")] if isinstance(value, str) else value
        one = numbers if isinstance(numbers, Sequence) else [numbers]
        return [*one] * 3 if value is not None and len(one) == 1 else numbers

    @field_validator("keys")
    @classmethod
    def _are_expressions(cls, keys: dict[str, str] | None) -> dict[str, str] | None:
        for pattern in keys or {}:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return keys

    @property
    def description(self) -> Description:
        return Description(**{field.name: getattr(self, field.name) for field in fields(Description)})


def weights_options(**words: Any) -> WeightsOptions:
    """The options with these words; raises for impossible values."""
    return WeightsOptions.parse(words)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """The options in texts like `heads=4` and `mean=0.5,0.5,0.5`."""
    options: dict[str, Any] = {}
    for text in texts:
        word, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise UserError(f"cannot read the weights option {text!r}; write WORD=VALUE, for example heads=4")
        if word != "keys":
            options |= with_overrides({}, [f"{word}={value}"])
            continue
        pattern, equals, replacement = value.rpartition("=")  # a pattern may contain (?=…)
        if not equals or not pattern:
            raise UserError(
                rf"cannot read keys={value}; write PATTERN=REPLACEMENT, for example layers\.(\d+)=blocks.\1"
            )
        options.setdefault("keys", {})[pattern] = replacement
    weights_options(**options)  # refuses impossible values before anything is read
    return options


def activation_named(source: Path, name: Any) -> Activation | None:
    """The activation that a config.json names; raises for others, because they change every feature."""
    if name is None:
        return None
    if name not in _ACTIVATIONS:
        raise UserError(
            f"{source}: hidden_act = {name!r} in its config.json is not supported; known are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def warn_of_guesses(source: str, guesses: Mapping[str, Any]) -> None:
    """One warning with all guesses, if there are any."""
    if not guesses:
        return
    assumed = ", ".join(f"{word}={_shown(value)}" for word, value in guesses.items())
    words = ", ".join(f"{word}=" for word in guesses)
    warnings.warn(
        GuessedWeights(
            f"{source} does not state everything its features depend on. Assumed: {assumed}. If one is wrong, the "
            f"features are wrong: give {words} to asterism.load, or --weights-option WORD=VALUE on the command line. "
            "If timm has this model, its name= states them all."
        ),
        stacklevel=3,
    )


def _shown(value: Any) -> str:
    return "(" + ", ".join(f"{number:g}" for number in value) + ")" if isinstance(value, tuple) else str(value)


def guesses_in(known: Description, usual: Description, certain: frozenset[str]) -> dict[str, Any]:
    """The values of the usual description that nothing states and that do not hold for certain."""
    taken = {word: getattr(usual, word) for word in (field.name for field in fields(Description))}
    missing = known.missing() - certain
    return {word: value for word, value in taken.items() if word in missing and value is not None}
