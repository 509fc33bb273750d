"""Results that can be reproduced: values together with everything they depend on."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from rich.table import Table
from rich.text import Text

from asterism.data import Source
from asterism.errors import UserError
from asterism.files import write_text
from asterism.types import Model
from asterism.viz.console import visible

_PACKAGES = ("asterism", "torch", "torchvision", "timm")

_Number = Annotated[float, Field(strict=True)]


@dataclass(frozen=True)
class DataUsed:
    """Which images were used."""

    name: str
    images: int
    fingerprint: str


@dataclass(frozen=True)
class Result:
    """The outcome of one protocol for one encoder on one data set."""

    protocol: str
    values: Annotated[Mapping[str, _Number], Field(min_length=1)]
    constants: Mapping[str, Any]
    model: Model
    train: DataUsed
    test: DataUsed
    seconds: _Number
    baselines: Mapping[str, Mapping[str, _Number]] = field(
        default_factory=dict
    )  # same protocol and data, other encoders
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: _versions())
    path: Path | None = None  # where it was written

    def write(self, folder: Path) -> Result:
        """Write `<folder>/<protocol>.json`, or `<protocol>@<data>.json` if that file holds a result on other data or
        with other settings. An earlier result on the same images with the same settings is replaced atomically."""
        data = re.sub(r"[^\w.=-]+", "-", self.test.name).strip("-")
        unique = hashlib.sha256(json.dumps(self._setting, sort_keys=True).encode()).hexdigest()[:10]
        names = (self.protocol, f"{self.protocol}@{data}", f"{self.protocol}@{data}-{unique}")
        path = next(path for name in names if self._may_replace(path := folder / f"{name}.json"))
        content = asdict(self)
        del content["path"]
        write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return replace(self, path=path)

    @property
    def _setting(self) -> tuple[str, str, Any]:
        """All that two results must share for one to replace the other."""
        return self.train.fingerprint, self.test.fingerprint, _plain(self.constants)

    def _may_replace(self, path: Path) -> bool:
        if path.is_dir():
            raise UserError(f"{path} is a folder, so the result cannot be written there; move it away")
        try:
            return _read(path)._setting == self._setting
        except (UserError, OSError):
            return True  # the file does not exist, or is not a valid result


class Scores(dict[str, Result]):
    """Results by protocol."""

    report: Path | None = None  # a page about them, if one was written

    def __rich__(self) -> Table:
        """One table: a row per metric, a column per encoder."""
        results = list(self.values())
        others = list(dict.fromkeys(name for result in results for name in result.baselines))
        table = Table("", visible(results[0].model.name), *map(visible, others))
        for column in table.columns[1:]:
            column.justify = "right"
        for result in results:
            title = f"{result.protocol}: {result.test.images:,} images of {visible(result.test.name)}"
            if len(results) == 1:
                table.title = title
            else:
                table.add_row(Text(title, style="bold"))
            for name, value in result.values.items():
                known = (value, *(result.baselines.get(other, {}).get(name) for other in others))
                table.add_row(visible(name), *("" if number is None else f"{number:.2f}" for number in known))
        return table

    def summary(self) -> str:
        """What the table does not show."""
        notes = [note for result in self.values() for note in result.notes]
        written = [f"Written to {result.path}" for result in self.values() if result.path is not None]
        return "\n".join([*notes, *written, *([] if self.report is None else [f"Report: {self.report}"])])


def _plain(constants: Mapping[str, Any]) -> Any:
    """As read from a file: JSON has lists, not tuples."""
    return json.loads(json.dumps(constants, default=str))


def data_used(source: Source) -> DataUsed:
    return DataUsed(source.name, len(source), source.fingerprint)


def read_results(folder: Path) -> list[Result]:
    """Every result in a run's `eval` folder, by protocol and data."""
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def _read(path: Path) -> Result:
    """A result; every value is checked, because the file may have been edited or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return replace(_RESULT.validate_python(content), path=path)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise UserError(f"{path} is not a result of `asterism evaluate` ({reason}); delete it and evaluate again")


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in _PACKAGES}}


_RESULT = TypeAdapter(Result)
