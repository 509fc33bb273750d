"""The program: its commands, what they print, and how errors end it.

Commands are functions: those of `asterism.api`, and those that other packages name in the group `asterism.commands`.
Heavy imports are deferred until a command runs, so that --help is fast.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from asterism import api
from asterism.cli.shell import help_text, shell_command
from asterism.errors import Interrupted, UserError, explain_system_error
from asterism.plugins import plugins

# In the order of the help.
COMMANDS = {
    **{name: name for name in ("pretrain", "profile", "finetune", "predict", "evaluate", "embed", "concepts")},
    **{name: name for name in ("reconstruct", "track", "segment", "search", "report", "export", "demo")},
    "list": "list_entries",
}
_USER_ERROR = 2
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class _Commands(TyperGroup):
    """Makes commands when they are needed, and turns errors that a user can fix into a message and an exit code.

    ASTERISM_DEBUG=1 shows the traceback.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *plugins("commands")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        return shell_command(cmd_name, _function(cmd_name), show)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Names and first sentences. Those of satellites are read without an import."""
        own = {name: help_text(getattr(api, function)).partition("\n")[0] for name, function in COMMANDS.items()}
        added = {name: plugin.summary() for name, plugin in plugins("commands").items()}
        with formatter.section("Commands"):
            formatter.write_dl([*own.items(), *added.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            failure = _failure(error)
            if failure is None or os.environ.get("ASTERISM_DEBUG"):
                raise
        message, code = failure
        _warn(message, "red" if code == _USER_ERROR else "yellow")
        raise typer.Exit(code)


def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(api, COMMANDS[name]) if name in COMMANDS else plugins("commands")[name].load()
    return found


def show(result: Any) -> None:
    """Print what a command returned: its table and its `summary()`, or itself; and its `warnings()` on stderr."""
    collectives = sys.modules.get("asterism.ops.collectives")  # absent if the command did without torch
    if result is None or (collectives is not None and collectives.rank() != 0):
        return
    from asterism.viz.console import plain_console, say, warn

    if hasattr(result, "__rich__"):
        plain_console().print(result)
    if summary := result.summary() if hasattr(result, "summary") else "":
        say(summary)
    elif not hasattr(result, "__rich__"):
        for each in result if isinstance(result, Sequence) and not isinstance(result, str) else [result]:
            say(each)
    for warning in result.warnings() if hasattr(result, "warnings") else ():
        warn(warning)


def _failure(error: BaseException) -> tuple[str, int] | None:
    """The message and the exit code; None for a bug in Asterism, which keeps its traceback."""
    if isinstance(error, UserError):
        return f"Error: {error}", _USER_ERROR
    if isinstance(error, Interrupted):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return (
            "Stopped. Finished results are kept, and nothing is half written. Repeat the command to continue; a run "
            "with checkpoints continues with --resume RUN.",
            _INTERRUPTED,
        )
    if isinstance(error, BrokenPipeError):  # the reader of our output has gone: click ends the command quietly
        return None
    explanation = explain_system_error(error)
    return None if explanation is None else (f"Error: {explanation}", _USER_ERROR)


def _explained(hook: Callable[[Any], object]) -> Callable[[Any], None]:
    """A hook for errors in threads and destructors of libraries, with one sentence for those of the system."""

    def explain(failed: Any) -> None:
        explanation = explain_system_error(failed.exc_value) if isinstance(failed.exc_value, OSError) else None
        if explanation is None or os.environ.get("ASTERISM_DEBUG"):
            hook(failed)
        else:
            _warn(f"Warning: {explanation}")

    return explain


def _warn(message: str, style: str = "yellow") -> None:
    from asterism.viz.console import warn

    warn(message, style)


app = typer.Typer(
    name="asterism",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help pages take 0.2 s longer
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # file names may hold bytes that are not text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # lost connections are explained without stacks of C++
    shown = warnings.showwarning

    def show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        """Our own warnings without the line of code that raised them."""
        if category.__module__.startswith("asterism."):
            _warn(f"Warning: {message}")
        else:
            from asterism.viz.console import visible

            shown(visible(message), category, *place, **more)

    warnings.showwarning = show_warning
    sys.unraisablehook, threading.excepthook = _explained(sys.unraisablehook), _explained(threading.excepthook)
    app()


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """Learn what is in images, and where, without labels.

    \b
    Examples:
      asterism demo
      asterism pretrain dino --data photos/ --out runs/first
      asterism evaluate runs/first --data labelled/
      asterism finetune runs/first --task classify --data labelled/ --out runs/flowers
      asterism predict runs/flowers --images new/
      asterism align runs/first --data captions.jsonl --out runs/first-text
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism concepts runs/first photo.jpg --index photos.parquet
      asterism search runs/first --index photos.parquet --query a.jpg
      asterism explore runs/first --data photos/
      asterism report runs/first
      asterism compare prototypes-scenes
      asterism export runs/first --to onnx --out first-onnx
    """
    if version:
        import asterism
        from asterism.viz.console import say

        say(f"asterism {asterism.__version__}")
        raise typer.Exit
