"""What may change when a run is resumed: only settings that cannot affect its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.config import Config
from asterism.data import Source
from asterism.data.sources.source import sampled_contents
from asterism.errors import UserError
from asterism.ops import collectives
from asterism.train.checkpoint import Facts, newest_facts
from asterism.train.kind import Request
from asterism.train.run import Run

_MAY_CHANGE = (
    "trainer.accelerator",
    "trainer.devices",
    "trainer.nodes",
    "trainer.strategy",
    "trainer.compile",
    "data.path",
    "data.workers",
    "data.prefetch",
    "data.keep_mb",
    "data.max_bad_share",
    "method.file.path",  # another content is refused
    "method.teacher",  # where a frozen teacher is; another network is refused by its fingerprint
)
_SECTIONS = ("checkpoint.", "monitor.")
_ALLOWED = f"{', '.join(_MAY_CHANGE)}, {' and '.join(f'{section}*' for section in _SECTIONS)}"
_ANEW = "start a new run from its weights (pretrain --init RUN, finetune RUN)"


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse changes on the command line that would make it another run."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not _may_change(key):
            raise UserError(
                f"{key} cannot change when a run is resumed; allowed are {_ALLOWED}. For other changes {_ANEW}"
            )


def check_unedited(recipe: Config, run: Run) -> None:
    """Refuse a recipe that was edited since the last checkpoint, before anything that it names is opened or fetched."""
    facts = newest_facts(run.checkpoints)
    if facts is not None:
        check_recipe(recipe, facts, run.path / "config.yaml")


def check_recipe(recipe: Config, facts: Facts, file: Path) -> None:
    """Refuse a recipe that differs from the one in the checkpoint, for example because `file` was edited."""
    now = dict(_leaves(recipe.model_dump(mode="json")))
    before = {"trainer.steps": facts.steps, "trainer.batch_size": facts.batch_size}
    if facts.recipe is not None:
        try:
            before |= _leaves(type(recipe).parse(facts.recipe).model_dump(mode="json"))
        except UserError as error:
            raise UserError(f"the checkpoint's recipe does not fit this version of Asterism: {error}") from None
    for key, value in before.items():
        if not _may_change(key) and now.get(key) != value:
            raise UserError(
                f"{file} was changed since the last checkpoint: {key} is {now.get(key)!r}, but was {value!r}. A "
                f"resumed run has to be the same run: restore the value, or {_ANEW}"
            )


def check_equal_everywhere(recipe: Config, source: Source, request: Request[Any, Any]) -> None:
    """Refuse processes that were started with different settings or images: they would train one network together."""
    if collectives.world_size() == 1:
        return
    init = None if request.init is None else request.init.source
    own: dict[str, Any] = {"--resume": request.resume, "--init": init, "the number of images": len(source)}
    own |= {key: value for key, value in _leaves(recipe.model_dump(mode="json")) if not _may_change(key)}
    own["the fingerprint of the images' names"] = source.fingerprint
    first = collectives.broadcast_object(own)

    def compare() -> None:
        for key in (*first, *own):
            if first.get(key) != own.get(key):
                raise UserError(
                    f"{key} is {own.get(key)!r} in the process of rank {collectives.rank()}, but {first.get(key)!r} in "
                    "that of rank 0; start all processes with the same command and the same images"
                )

    collectives.on_every_process(compare)


def check_data(source: Source, path: str, facts: Facts, run: Path) -> None:
    """Refuse other images than those that the run was started on; their place may have changed."""
    fix = f"start a new run from its weights: --init {run}"
    if len(source) != facts.images:
        raise UserError(f"{path} has {len(source)} images, but the run was started on {facts.images}; {fix}")
    if facts.data is not None and source.fingerprint != facts.data:
        raise UserError(f"{path} has {len(source)} images with other names than those the run was started on; {fix}")
    if facts.contents is not None and sampled_contents(source) != facts.contents:
        raise UserError(
            f"{path} has other images than those the run was started on, under the same names: bring the original ones "
            f"back, or {fix}"
        )


def check_frozen_encoders(now: Facts, before: Facts, recipe: Config, run: Path) -> None:
    """Checkpoints do not contain frozen encoders, so a run continues only with the same ones."""
    values = dict(_leaves(recipe.model_dump(mode="json")))
    for setting, fingerprint in now.frozen_encoders.items():
        known = before.frozen_encoders.get(setting, "unknown")
        if fingerprint != known:
            fix = f"give the original one: --resume {run} {setting}=PATH" if _may_change(setting) else "restore it"
            raise UserError(
                f"{setting} = {values[setting]} is not the network that the run was started with (fingerprint "
                f"{fingerprint[:8]}, then {known[:8]}); {fix}, or {_ANEW}"
            )


def _may_change(key: str) -> bool:
    return key in _MAY_CHANGE or key.startswith(_SECTIONS)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
