"""Weights & Biases: online, or offline in the run's folder until `wandb sync`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from asterism.config import Config
from asterism.train.trackers.base import Ending, Tracker, entry_of, remember_entry

_SECONDS = 30  # to reach the server at the start


class WandbConfig(Config):
    """Where the run appears. The account is that of `wandb login` or WANDB_API_KEY."""

    project: str = "asterism"
    entity: str | None = None  # user or team; None: the account's default
    name: str | None = None  # None: the name of the run's folder
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: Literal["online", "offline"] = "online"  # offline: files in RUN/wandb, which `wandb sync` uploads


class WeightsAndBiases(Tracker):
    """One W&B run per run. Steps are logged as a value, because W&B drops values of steps that it has already seen, and
    a resumed run repeats those after its checkpoint."""

    def __init__(self, config: WandbConfig, run: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        entry = entry_of(run, "wandb") or secrets.token_hex(4)
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.name or run.resolve().name,
            group=config.group,
            tags=list(config.tags),
            mode=config.mode,
            id=entry,
            resume="allow",
            dir=str(run),
            config=dict(settings),
            settings=wandb.Settings(silent=True, console="off", init_timeout=_SECONDS),
        )
        remember_entry(run, "wandb", entry)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=0 if ending == "finished" else 1)
