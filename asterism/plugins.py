"""What satellites and other people's packages add: methods, tasks, protocols, and whatever else has a group below.

A package declares entry points, and what they name appears in `asterism list` and works by its name:

    [project.entry-points."asterism.methods"]
    my_method = "my_package.my_method:MyMethod"

| group | what an entry point names |
|---|---|
| `methods` | a class derived from `asterism.methods.base.Method`; its `Config` has the same `name` |
| `tasks` | a class derived from `asterism.finetuning.task.Task` |
| `protocols` | a class derived from `asterism.evals.base.Evaluation` |
| `commands` | a function, in the shell `asterism NAME`, in Python `asterism.NAME`; annotated for typer |
| `exports` | a `Target` of `asterism.tools.export.target`, for `asterism export --to NAME` |
| `datasets` | a function that takes a split, or None, and returns a `Source` |
| `runs` | a kind of run that can be started and resumed |
| `lists` | a function that returns what `asterism list NAME` prints: a line for each name |

Names are read from the packages' metadata. Nothing is imported until it is used.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from asterism.errors import UserError

Group = Literal["methods", "tasks", "protocols", "commands", "exports", "datasets", "models", "runs", "lists"]


@dataclass(frozen=True)
class Plugin:
    """One thing that a package adds."""

    entry: EntryPoint

    def load(self) -> Any:
        try:
            return self.entry.load()
        except (ImportError, AttributeError) as error:
            package = self.entry.dist.name if self.entry.dist is not None else self.entry.module
            raise UserError(
                f"{self.entry.name!r} of the package {package} cannot be loaded: {error}. Update or uninstall {package}"
            ) from error

    def summary(self) -> str:
        """The first line of its module's docstring, read without importing the module."""
        spec = importlib.util.find_spec(self.entry.module)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return ""
        return first_line(Path(spec.origin))


@cache
def plugins(group: Group) -> dict[str, Plugin]:
    """Everything that installed packages add to a group, by name."""
    found = sorted(entry_points(group=f"asterism.{group}"), key=lambda entry: entry.name)
    return {entry.name: Plugin(entry) for entry in found}


def first_line(file: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
