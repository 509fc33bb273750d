"""The command line: every command is one file here, and calls the function of the same name in the Python interface.

Heavy imports are deferred until a command runs, so that --help is fast.
"""

from importlib import import_module

from asterism.cli.app import app, main

# Each registers its command; help lists them in this order.
_COMMANDS = (
    "pretrain",
    "profile",
    "finetune",
    "predict",
    "align",
    "evaluate",
    "embed",
    "concepts",
    "reconstruct",
    "track",
    "segment",
    "search",
    "explore",
    "report",
    "compare",
    "export",
    "list_entries",
    "demo",
)
for _command in _COMMANDS:
    import_module(f"asterism.cli.{_command}")

__all__ = ["app", "main"]
