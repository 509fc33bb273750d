"""Parameters that several commands have, and how the program shows and reads what the shell writes differently.

The program reads the signatures of commands. A parameter annotated with typer's `Argument` or `Option` is part of the
command line; others are for Python alone. What the shell cannot write follows general rules (`asterism.cli.shell`): a
sequence is an option that may be repeated, a place is text, and `Read` converts everything else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from asterism.models import Weights
    from asterism.nn.encoder import Encoder
    from asterism.train.run import Run

PathLike = str | os.PathLike[str]
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Read:
    """Makes a value of what the shell gives: text, or a list of texts for an option that may be repeated."""

    value: Callable[[Any], Any]
    repeated: bool = False


@dataclass(frozen=True)
class Instead:
    """An option with which the program calls another function of the same arguments."""

    flag: str
    function: Callable[..., Any]
    help: str
    metavar: str | None = None  # of the option's value, which goes to the function's parameter of this name; None: none


def instead(
    flag: str, function: Callable[..., Any], help: str, metavar: str | None = None
) -> Callable[[Command], Command]:
    """Give a command an `Instead`."""

    def add(command: Command) -> Command:
        options = (Instead(flag, function, help, metavar), *getattr(command, "instead", ()))
        command.instead = options  # type: ignore[attr-defined]
        return command

    return add


ModelWithConcepts = Annotated[
    "PathLike | Run | Weights | Encoder",
    typer.Argument(metavar="MODEL", help="A run folder or weights of a model with concepts, or `nano-stellar`."),
]
AnyModel = Annotated[
    "PathLike | Run | Weights | Encoder",
    typer.Argument(metavar="MODEL", help="`nano`, a run folder, a weights file or a timm name."),
]
Method = Annotated[
    str | Mapping[str, Any] | None,
    typer.Argument(
        metavar="[METHOD|RECIPE|FILE.yaml]", help="What to train: see `asterism list methods`, `list recipes`."
    ),
]
Data = Annotated[
    PathLike | Mapping[str, Any] | None,
    typer.Option(
        "--data", "-d", metavar="DATA", help="A folder of images, tar shards, or a name: see `list datasets`."
    ),
]
Images = Annotated[Any, typer.Argument(metavar="IMAGE...", help="Image files."), Read(list, repeated=True)]
IndexData = Annotated[
    PathLike | None,
    typer.Option("--data", "-d", metavar="DATA", help="The folder of the index's images, if they have moved."),
]
Tokenizer = Annotated[
    PathLike | None,
    typer.Option(metavar="FILE", help="The tokenizer whose codes the model predicts, if its file does not contain it."),
]
NewRun = Annotated[PathLike | None, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")]
Resume = Annotated[PathLike | None, typer.Option(metavar="RUN", help="Resume this run from its last checkpoint.")]
OverwriteRun = Annotated[bool, typer.Option("--overwrite", help="Replace an existing run in --out.")]
OverwriteFiles = Annotated[bool, typer.Option("--overwrite", help="Replace existing files in --out.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images per batch.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Where to compute.")]
Overrides = Annotated[
    Sequence[str], typer.Argument(metavar="KEY=VALUE", help="Settings to change.", show_default=False)
]


def changes_of(settings: Mapping[str, Any], overrides: Sequence[str] = (), prefix: str = "") -> list[str]:
    """Nested mappings and dotted keys as command-line overrides, and then these overrides."""
    changes: list[str] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            changes += changes_of(value, prefix=f"{prefix}{key}.")
        else:
            changes.append(f"{prefix}{key}={json.dumps(value, default=os.fspath)}")  # JSON is valid YAML
    return [*changes, *overrides]
