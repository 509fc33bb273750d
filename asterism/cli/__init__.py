"""The command line: the functions of `asterism.api` and of satellites, registered as commands."""

from asterism.cli.program import app, main

__all__ = ["app", "main"]
