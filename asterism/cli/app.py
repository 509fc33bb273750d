"""The program: its commands, and how errors end it."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from asterism.cli.printing import say, warn
from asterism.errors import Interrupted, UserError, explain_system_error

_USER_ERROR = 2
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class _Commands(TyperGroup):
    """Turns errors that a user can fix into a message and an exit code; ASTERISM_DEBUG=1 shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            failure = _failure(error)
            if failure is None or os.environ.get("ASTERISM_DEBUG"):
                raise
        message, code = failure
        warn(message, "red" if code == _USER_ERROR else "yellow")
        raise typer.Exit(code)


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


app = typer.Typer(
    name="asterism",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich help pages take 0.2 s longer
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # file names may hold bytes that are not text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        """Our own warnings without the line of code that raised them."""
        if category.__module__.startswith("asterism."):
            warn(f"Warning: {message}", "yellow")
        else:
            shown(message, category, *place, **more)

    warnings.showwarning = show
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

        say(f"asterism {asterism.__version__}")
        raise typer.Exit
