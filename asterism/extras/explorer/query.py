"""The parameters and the body of a request, checked: a value out of range is refused with one sentence."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import category

from asterism.extras.explorer.answers import Refused
from asterism.inputs import parse_json

_LONGEST = 60  # characters of a value in a sentence
_NO_TEXT = ("Cc", "Cs")  # Unicode's categories of control characters, and of lone surrogates


@dataclass(frozen=True)
class Query:
    """The content of a request. Nothing in it is trusted."""

    parameters: Mapping[str, str]
    body: bytes = b""

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        text = self.parameters.get(name)
        if text is None and default is not None:
            return default
        if text is None:
            raise Refused(f"the parameter {name} is missing")
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
            raise Refused(f"{name} = {_shown(text)} must be a whole number")
        return _within(name, int(text), low, high)

    def number(self, name: str, low: float, high: float, default: float) -> float:
        text = self.parameters.get(name)
        if text is None:
            return default
        try:
            value = float(text[:_LONGEST])
        except ValueError:
            raise Refused(f"{name} = {_shown(text)} must be a number") from None
        if not math.isfinite(value) or not low <= value <= high:
            raise Refused(f"{name} = {_shown(text)} must be a number from {low:g} to {high:g}")
        return value

    def choice(self, name: str, allowed: Collection[str], default: str | None = None) -> str:
        text = self.parameters.get(name, default)
        if text is None:
            raise Refused(f"the parameter {name} is missing")
        if text not in allowed:
            raise Refused(f"{name} = {_shown(text)} is unknown; choose from: {', '.join(allowed)}")
        return text

    def text(self, name: str, most: int) -> str:
        text = self.parameters.get(name, "").strip()
        if not text:
            raise Refused(f"the parameter {name} is missing or empty")
        if len(text) > most:
            raise Refused(f"{name} has {len(text):,} characters; at most {most} are allowed")
        return text

    def json(self) -> Fields:
        try:
            value = parse_json(self.body.decode("utf-8"))
        except ValueError:
            raise Refused("the body must be a JSON object") from None
        if not isinstance(value, dict):
            raise Refused("the body must be a JSON object")
        return Fields(value)


@dataclass(frozen=True)
class Fields:
    """A JSON object of a request."""

    values: Mapping[str, Any]

    def integer(self, name: str, low: int, high: int) -> int:
        return _whole(name, self.values.get(name), low, high)

    def text(self, name: str, most: int) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise Refused(f"{name} must be a text")
        if len(value) > most:
            raise Refused(f"{name} has {len(value):,} characters; at most {most} are allowed")
        if any(category(character) in _NO_TEXT for character in value):
            raise Refused(f"{name} = {_shown(value)} has control characters or halves of characters")
        return value.strip()

    def integers(self, name: str, low: int, high: int, most: int) -> list[int]:
        """A list of whole numbers, possibly empty, without repeats."""
        values = [_whole(name, value, low, high) for value in self.list(name, most)]
        return list(dict.fromkeys(values))

    def objects(self, name: str, most: int) -> list[Fields]:
        values = self.list(name, most)
        if not all(isinstance(value, dict) for value in values):
            raise Refused(f"{name} must be a list of objects")
        return [Fields(value) for value in values]

    def list(self, name: str, most: int) -> list[Any]:
        values = self.values.get(name, [])
        if not isinstance(values, list):
            raise Refused(f"{name} must be a list")
        if len(values) > most:
            raise Refused(f"{name} has {len(values):,} entries; at most {most:,} are allowed")
        return values


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{name} = {_shown(value)} must be a whole number")
    return _within(name, value, low, high)


def _within(name: str, value: int, low: int, high: int) -> int:
    if high < low:
        raise Refused(f"{name} = {_shown(value)}: there is nothing to choose from", 404)
    if not low <= value <= high:
        raise Refused(f"{name} = {_shown(value)} must be from {low:,} to {high:,}", 404 if value > high else 400)
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
