"""What the tensors of a file do not show: heads, pixel statistics, image size, epsilon, activation, pooling.

Each value is taken from the first source that states it: the user's options, settings in or next to the file, the timm
model that the user named, the conventions of the family. A convention that does not hold for certain is a guess. All
guesses of a file are in one warning, each with the option that corrects it.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from asterism.errors import UserError, unknown
from asterism.nn.backbone import Pooling
from asterism.nn.timm_arguments import Activation
from asterism.ops.normalise import Triple

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


@dataclass(frozen=True)
class WeightsOptions(Description):
    """The user's options for weights: the words of `asterism.load`, and of --weights-option on the command line."""

    family: str | None = None  # read the file as this family instead of detecting it
    name: str | None = None  # the timm model that the weights belong to
    which: Literal["teacher", "student"] = "teacher"  # if the file contains both
    decoder_heads: int | None = None  # of STELLAR's decoder
    tokenizer: str | Path | None = None  # whose codes STELLAR's decoder predicts, if the file lacks it
    keys: Mapping[str, str] | None = None  # regular expression → replacement, for the names of the file's tensors


def weights_options(**words: Any) -> WeightsOptions:
    """The options with these words; raises for impossible values. One number for mean or std is for all channels."""
    for word in ("heads", "decoder_heads", "image_size", "eps"):
        value = words.get(word)
        if value is not None and value <= 0:
            raise UserError(f"{word} = {value}: expected a positive number")
    for word, allowed in (("activation", get_args(Activation)), ("pooling", get_args(Pooling))):
        if words.get(word) is not None and words[word] not in allowed:
            raise unknown(word, str(words[word]), allowed)
    if words.get("which", "teacher") not in ("teacher", "student"):
        raise unknown("network of a checkpoint", str(words["which"]), ["teacher", "student"])
    words |= {word: _triple(word, words.get(word)) for word in ("mean", "std")}
    if words["std"] is not None and min(words["std"]) <= 0:
        raise UserError(f"std = {words['std']}: expected positive numbers")
    for pattern in words.get("keys") or {}:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UserError(f"keys: {pattern!r} is not a regular expression: {error}") from None
    return WeightsOptions(**words)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """The options in texts like `heads=4` and `mean=0.5,0.5,0.5`."""
    words = {field.name for field in fields(WeightsOptions)}
    options: dict[str, Any] = {}
    for text in texts:
        word, equals, value = text.partition("=")
        word = word.strip()
        if not equals or not value.strip():
            raise UserError(f"cannot read the weights option {text!r}; write WORD=VALUE, for example heads=4")
        if word not in words:
            raise unknown("weights option", word, words)
        parsed = _parsed(word, value.strip())
        options[word] = options.get(word, {}) | parsed if word == "keys" else parsed
    weights_options(**options)  # refuses impossible values before anything is read
    return options


def _parsed(word: str, value: str) -> Any:
    if word == "keys":
        pattern, equals, replacement = value.rpartition("=")  # a pattern may contain (?=…)
        if not equals or not pattern:
            raise UserError(
                rf"cannot read keys={value}; write PATTERN=REPLACEMENT, for example layers\.(\d+)=blocks.\1"
            )
        return {pattern: replacement}
    try:
        if word in ("heads", "decoder_heads", "image_size"):
            return int(value)
        if word == "eps":
            return float(value)
        if word in ("mean", "std"):
            return [float(part) for part in value.strip("[]()").split(",")]
    except ValueError:
        kind = "numbers, for example 0.5,0.5,0.5" if word in ("mean", "std") else "a number"
        raise UserError(f"cannot read the weights option {word}={value}; expected {kind}") from None
    return value


def _triple(word: str, values: Any) -> Triple | None:
    """Three numbers, from three or from one for all channels."""
    if values is None:
        return None
    numbers = [float(value) for value in (values if isinstance(values, Sequence) else [values])]
    if len(numbers) == 1:
        numbers *= 3
    if len(numbers) != 3:
        raise UserError(f"{word} has {len(numbers)} numbers; give one per channel (R, G, B), or one for all")
    return numbers[0], numbers[1], numbers[2]


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


def description_in(options: WeightsOptions) -> Description:
    return Description(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Description)})
