"""The commands, in Python and in the shell: every signature, type, help text and docstring stands here once.

Names are those of the command line and of the YAML recipes. Heavy imports are deferred until a command runs, so that
`import asterism` and `--help` are fast.
"""

from asterism.api.learn import demo, finetune, plan, pretrain, profile
from asterism.api.measure import evaluate, list_entries, report
from asterism.api.use import concepts, embed, export, predict, reconstruct, search, segment, track

__all__ = [
    "concepts",
    "demo",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "list_entries",
    "plan",
    "predict",
    "pretrain",
    "profile",
    "reconstruct",
    "report",
    "search",
    "segment",
    "track",
]
