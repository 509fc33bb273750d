"""The base of every configuration: strict, frozen, readable from YAML, with errors that suggest near matches.

A component's configuration is defined with the component; `asterism.train.recipe.Recipe` combines them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from asterism.errors import UserError, unknown

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """A frozen group of settings; an unknown key is an error that suggests near matches."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def parse(cls: type[C], values: Mapping[str, Any], section: str = "") -> C:
        """Validate, turning pydantic's errors into a `UserError`; `section` is the path of the settings in a recipe."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(_explain(cls, error, section)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; the error names file and line."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} contains a {type(values).__name__}, expected a mapping of settings")
    return values


def write_yaml(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `section.key=value` strings, values read as YAML, to a nested mapping."""
    result = _deep_copy(values)
    for override in overrides:
        path, separator, text = override.partition("=")
        if not separator or not path.strip():
            raise UserError(f"cannot read override {override!r}; write section.key=value, for example optim.lr=3e-4")
        *parents, last = path.strip().split(".")
        node = result
        for parent in parents:
            child = node.get(parent)
            if isinstance(child, str) and parent == "method":  # `method: dino` is short for `method: {name: dino}`
                child = {"name": child}
            node[parent] = child if isinstance(child, dict) else {}
            node = node[parent]
        try:
            node[last] = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError:
            raise UserError(f"cannot read the value of override {override!r} as YAML") from None
    return result


class _Loader(yaml.SafeLoader):
    """A loader that reads 3e-4 as a number; YAML 1.1 reads it as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _explain(config: type[BaseModel], error: ValidationError, section: str) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        *parents, last = [section] * bool(section) + [str(part) for part in problem["loc"]] or [""]
        place = ".".join([*parents, last])
        if problem["type"] == "extra_forbidden":
            siblings = _field_names(config, problem["loc"][:-1])
            lines.append(str(unknown("setting", place, [".".join([*parents, name]) for name in siblings])))
        elif problem["type"] == "missing":
            lines.append(f"{place} is required")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            message = message[:1].lower() + message[1:]
            given = problem["input"]
            is_leaf = place and not isinstance(given, (Mapping, BaseModel))
            lines.append(f"{place} = {given!r}: {message}" if is_leaf else f"{place}: {message}".removeprefix(": "))
    return "\n".join(lines)


def _field_names(config: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Field names of the settings group at `path`, for near matches."""
    fields = config.model_fields
    for part in path:
        if part not in fields:  # a key of a mapping or a place in a list, whose values the fields describe already
            continue
        annotation = fields[part].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        nested = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        if nested is None:
            return []
        fields = nested.model_fields
    return list(fields)
