"""A function as a command of the shell: general rules for what Python writes and the shell writes differently.

- Parameters annotated with typer's `Argument` or `Option` are shown; the rest are for Python alone.
- A number or a truth value is one; a sequence is an option or argument that may be repeated; all else is text.
- `Read` converts text, and `Instead` adds an option that calls another function: see `asterism.api.parameters`.
- A function of a model's weights also has --weights-option, which describes them, and --keys, one of its words.
- `overrides` takes KEY=VALUE, also in the place of a first argument that may be left out.
- In a docstring, paragraphs that begin with "In Python" are left out, and indented lines are kept as they are.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ForwardRef, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from asterism.api.parameters import Instead, Read
from asterism.errors import UserError

_WEIGHTS, _KEYS = "weights_option", "keys"
_WeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weights-option",
        "-w",
        metavar="WORD=VALUE",
        help="What a weights file does not say: heads=4, mean=0.5,0.5,0.5, name=TIMM_MODEL, …; may be repeated.",
    ),
]
_Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--keys",
        metavar="PATTERN=REPLACEMENT",
        help=r"Rename tensors of a weights file, by regular expressions: 'layers\.(\d+)=blocks.\1'; may be repeated.",
    ),
]


def shell_command(name: str, function: Callable[..., Any], show: Callable[[Any], None]) -> Any:
    """The command of a function, whose result is shown."""
    parameters = _parameters(function)
    others: tuple[Instead, ...] = getattr(function, "instead", ())
    more = {each.flag: _parameters(each.function) for each in others}

    def run(**words: Any) -> None:
        given = {key: value for key, value in words.items() if value is not None}
        called, known = function, parameters
        for each in others:
            if chosen := given.get(_name(each.flag)):
                called, known = each.function, more[each.flag]
                if each.metavar is not None:
                    called = partial(called, **{_name(each.flag): chosen})
        show(_call(called, known, given))

    every = {parameter.name: parameter for each in others for parameter in more[each.flag]}
    every = {parameter.name: parameter for parameter in parameters} | every
    shown = [parameter.in_the_shell() for parameter in every.values()] + [_flag(each) for each in others]
    if any(parameter.describes_weights for parameter in parameters):
        shown += [_keyword(_WEIGHTS, _WeightsOption, None), _keyword(_KEYS, _Keys, None)]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    single.command(name, help=_marked(help_text(function)))(run)
    return typer.main.get_command(single)


class _Parameter:
    """A parameter of a function that the shell has too."""

    def __init__(self, own: inspect.Parameter, kinds: set[Any], info: ParameterInfo, read: Read | None) -> None:
        self.name, self.kind, self.default = own.name, own.kind, own.default
        self._info, self._read = info, read
        self.is_many = own.kind is inspect.Parameter.VAR_POSITIONAL
        self.describes_weights = "Weights" in {getattr(kind, "__name__", None) for kind in kinds}
        repeated = self.is_many or (Sequence in kinds if read is None else read.repeated)
        number = next((kind for kind in (bool, int, float) if kind in kinds), str) if read is None else str
        self._type: Any = list[str] if repeated else number

    @property
    def may_be_missing(self) -> bool:
        return self.default is not inspect.Parameter.empty

    def in_the_shell(self) -> inspect.Parameter:
        """The parameter as typer reads it."""
        if self.may_be_missing and not isinstance(self.default, bool | int | float | str):
            return _keyword(self.name, Annotated[self._type | None, self._info], None)
        return _keyword(self.name, Annotated[self._type, self._info], self.default)

    def value(self, given: Any, weights: Sequence[str]) -> Any:
        """What the function takes, for what the shell gave."""
        if self._read is not None:
            return self._read.value(given)
        if self.describes_weights and weights:
            from asterism import models
            from asterism.nn.weights.description import parse_options

            return models.weights(given, **parse_options(weights))
        return given

    @property
    def title(self) -> str:
        """As the shell writes it."""
        return f"--{self.name}" if isinstance(self._info, OptionInfo) else str(self._info.metavar).strip("[]")


def _call(function: Callable[..., Any], parameters: Sequence[_Parameter], given: dict[str, Any]) -> Any:
    weights = [*given.pop(_WEIGHTS, []), *(f"keys={each}" for each in given.pop(_KEYS, []))]
    first = parameters[0]
    takes_settings = first.may_be_missing and "overrides" in {parameter.name for parameter in parameters}
    if takes_settings and "=" in given.get(first.name, ""):  # the first argument was left out
        given["overrides"] = [given.pop(first.name), *given.get("overrides", [])]
    for parameter in parameters:
        if weights and parameter.describes_weights and parameter.name not in given:
            raise UserError(
                f"--weights-option and --keys describe the weights of {parameter.title}, which is not given"
            )
    values = {
        parameter.name: parameter.value(given[parameter.name], weights)
        for parameter in parameters
        if parameter.name in given
    }
    many = [value for parameter in parameters if parameter.is_many for value in values.pop(parameter.name, ())]
    return function(*many, **values)


def _parameters(function: Callable[..., Any]) -> list[_Parameter]:
    found = []
    for own in inspect.signature(function).parameters.values():
        annotation = _evaluated(own.annotation, function)
        if get_origin(annotation) is not Annotated:
            continue
        kind, *details = get_args(annotation)
        info = next((each for each in details if isinstance(each, ArgumentInfo | OptionInfo)), None)
        read = next((each for each in details if isinstance(each, Read)), None)
        if info is not None:
            found.append(_Parameter(own, _alternatives(kind, function), info, read))
    return found


def _flag(other: Instead) -> inspect.Parameter:
    if other.metavar is None:
        return _keyword(_name(other.flag), Annotated[bool, typer.Option(other.flag, help=other.help)], False)
    option = typer.Option(other.flag, metavar=other.metavar, help=other.help)
    return _keyword(_name(other.flag), Annotated[str | None, option], None)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _alternatives(kind: Any, function: Callable[..., Any]) -> set[Any]:
    """The classes of a type; of `Sequence[int]` it is `Sequence`."""
    if isinstance(kind, ForwardRef):
        kind = _evaluated(kind.__forward_arg__, function)
    origin = get_origin(kind)
    if origin is None or (isinstance(origin, type) and not issubclass(origin, _UNION)):
        return {origin or kind}
    return {found for part in get_args(kind) for found in _alternatives(part, function)}


_UNION = type(int | str)


class _Names(Mapping[str, Any]):
    """The names of a module. In place of one that is only imported for type checkers, a class without content."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self._module = module

    def __getitem__(self, name: str) -> Any:
        return self._module.get(name) or getattr(builtins, name, None) or type(name, (), {})

    def __iter__(self) -> Any:
        return iter(self._module)

    def __len__(self) -> int:
        return len(self._module)


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, {}, _Names(vars(sys.modules[function.__module__])))


def help_text(function: Callable[..., Any]) -> str:
    """The docstring without the paragraphs for readers of Python."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(paragraph for paragraph in paragraphs if not paragraph.startswith("In Python"))


def _marked(text: str) -> str:
    """With click's mark for lines that are not to be filled; a heading stays with the lines below it."""
    marked: list[str] = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            heading = marked.pop()
            paragraph = f"\b\n{heading}\n{textwrap.indent(textwrap.dedent(paragraph), '  ')}"
        marked.append(paragraph)
    return "\n\n".join(marked)
