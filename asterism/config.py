"""The base of every configuration: strict, frozen, readable from YAML, with errors that suggest near matches.

A component's configuration is defined with the component; `asterism.train.recipe.Recipe` combines them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from asterism.errors import UserError, unknown
from asterism.inputs import read_text
from asterism.yaml_text import parse_yaml

_MOST_BYTES = 4 << 20  # of a YAML file; the largest shipped one has 3 kB
_DEEPEST = 20  # sections around a setting
_MOST_SHOWN = 120  # characters of a value in a message

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """A frozen group of settings; an unknown key is an error that suggests near matches. Numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @classmethod
    def parse(cls: type[C], values: Mapping[str, Any], section: str = "") -> C:
        """Validate, turning pydantic's errors into a `UserError`; `section` is the path of the settings in a recipe."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError(_explain(cls, error, section)) from None

    def kept_texts(self) -> Mapping[str, str]:
        """Texts that a run with these settings keeps next to them, by file name."""
        return {}

    @classmethod
    def check_json(cls, values: Mapping[str, Any]) -> None:
        """Refuse values of a JSON file that `parse` would first have to convert, such as a number in quotes."""
        try:
            cls.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            raise UserError(_explain(cls, error, "")) from None


def chosen_by_name(value: Any, section: str, names: Iterable[str], config_of: Callable[[str], type[Config]]) -> Any:
    """For a validator (mode "before") of a section such as `method: dino` or `method: {name: dino, …}`.

    The name decides which settings are allowed.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return value
    name = value.get("name")
    if not isinstance(name, str):
        given = "is required" if name is None else f"= {name!r} must be text"
        raise UserError(f"{section}.name {given}; choose from: {', '.join(names)}")
    return config_of(name).parse(value, section=section)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; the error names file and line."""
    if not path.exists():
        raise UserError(f"no such file: {path}")
    text = read_text(path, _MOST_BYTES)
    try:
        values = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} contains a {type(values).__name__}, expected a mapping of settings")
    return values


def shipped_yaml(folder: str) -> dict[str, Path]:
    """The YAML files in a folder of the package, by name."""
    files = Path(str(resources.files("asterism") / folder)).glob("*.yaml")
    return {path.stem: path for path in sorted(files)}


def find_yaml(name: str, kind: str, folder: str, others: Iterable[str] = ()) -> Path:
    """A YAML file, or one that is shipped in a folder of the package. others: names that the user may have meant."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in (shipped := shipped_yaml(folder)):
        raise unknown(kind, name, [*shipped, *others])
    return shipped[name]


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings; a head of another name replaces the one before, with all its settings."""
    result = dict(values)
    for key, change in changes.items():
        present = result.get(key)
        if isinstance(present, Mapping) and isinstance(change, Mapping):
            replaced = key == "head" and change.get("name", present.get("name")) != present.get("name")
            result[key] = change if replaced else merged(present, change)
        else:
            result[key] = change
    return result


def write_yaml(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `section.key=value` strings, values read as YAML, to a nested mapping."""
    result = _deep_copy(values)
    for override in overrides:
        path, separator, text = override.partition("=")
        if not separator or not path.strip():
            raise UserError(
                f"cannot read override {_shown(override)}; write section.key=value, for example optim.lr=3e-4"
            )
        *parents, last = path.strip().split(".")
        if len(parents) > _DEEPEST:
            raise UserError(f"cannot read override {_shown(override)}: no setting is that deeply nested")
        node = result
        for parent in parents:
            child = node.get(parent)
            if isinstance(child, str) and parent == "method":  # `method: dino` is short for `method: {name: dino}`
                child = {"name": child}
            node[parent] = child if isinstance(child, dict) else {}
            node = node[parent]
        try:
            node[last] = parse_yaml(text)
        except ValueError as error:
            raise UserError(f"cannot read the value of override {_shown(override)} as YAML: {error}") from None
    return result


def _deep_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _explain(config: type[BaseModel], error: ValidationError, section: str) -> str:
    """One line per setting, whatever the number of reasons that pydantic gives."""
    reasons: dict[str, list[str]] = {}
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        if problem["type"] == "too_short" and problem["input"]:  # its values are refused, each with its own reason
            continue
        path, siblings = _place(config, problem["loc"], problem["type"] in _ABOUT_KEYS)
        place = ".".join([section] * bool(section) + path)
        if problem["type"] == "extra_forbidden":
            prefix = place.rpartition(".")[0]
            names = [f"{prefix}.{name}" if prefix else name for name in siblings]
            lines[place] = str(unknown("setting", _shortened(place), names))
        elif problem["type"] == "missing":
            lines[place] = f"{place} is required"
        else:
            given = problem["input"]
            is_leaf = place and not isinstance(given, (Mapping, BaseModel))
            reason = _reason(problem)
            if reason not in reasons.setdefault(place, []):
                reasons[place].append(reason)
            said = ", or ".join(reasons[place])
            lines[place] = (f"{place} = {_shown(given)}: {said}" if is_leaf else f"{place}: {said}").removeprefix(": ")
    return "\n".join(lines.values())


_ABOUT_KEYS = ("extra_forbidden", "missing", "invalid_key")  # problems whose last part is the key itself
_WORDS = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "string_type": "must be text",
    "too_short": "must have {min_length} or more values",
    "too_long": "must have at most {max_length} values",
    "model_type": "must be a group of settings",
    "invalid_key": "must be a name",
}
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list", "dict": "a mapping"}


def _reason(problem: Mapping[str, Any]) -> str:
    kind = problem["type"]
    if kind in _WORDS:
        return _WORDS[kind].format(**problem.get("ctx", {}))
    if (word := kind.partition("_")[0]) in _KINDS:
        return f"must be {_KINDS[word]}"
    message = problem["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _place(config: type[BaseModel], path: tuple[int | str, ...], ends_in_key: bool) -> tuple[list[str], list[str]]:
    """The names that lead to a setting, and the names of the group it is in.

    Pydantic's path also names the alternatives it tried ("constrained-int"), which are not part of the settings.
    """
    fields: Mapping[str, FieldInfo] = config.model_fields
    names, has_free_keys = list[str](), False
    for number, part in enumerate(path):
        if part in fields:
            names.append(str(part))
            inside = _inside(fields[str(part)].annotation)
            has_free_keys = dict in inside
            nested = next((o for o in inside if isinstance(o, type) and issubclass(o, BaseModel)), None)
            fields = {} if nested is None else nested.model_fields
        elif isinstance(part, int) or has_free_keys or (ends_in_key and number == len(path) - 1):
            names.append(str(part))
            has_free_keys = False
    return names, list(fields)


def _inside(annotation: Any) -> list[Any]:
    """A type, the types it is made of, and their origins."""
    parts = [part for argument in get_args(annotation) for part in _inside(argument)]
    return [annotation, get_origin(annotation), *parts]


def _shown(value: object) -> str:
    return _shortened(repr(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"
