"""A recipe: all settings of one pretraining run, read from a YAML file, a shipped recipe or a method's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import SerializeAsAny, field_validator, model_validator

from asterism.config import Config, chosen_by_name, find_yaml, merged, read_yaml, shipped_yaml, with_overrides
from asterism.data.view_batches import DataConfig
from asterism.errors import UserError
from asterism.inputs import user_path
from asterism.methods import METHOD_FILE, load_method_file, method_class, method_names
from asterism.methods.base import MethodConfig, MethodFile
from asterism.nn.backbone import FROM_WEIGHTS, NAME_OF_INIT, BackboneConfig
from asterism.ranges import Count, Few, Positive, Seed
from asterism.train.checkpoint import CheckpointConfig
from asterism.train.monitor import LoggingConfig, MonitorConfig
from asterism.train.optim import OptimConfig

_FOLDER = "recipes"
_LENGTHS = ("epochs", "steps", "minutes")  # a run has one of them


class TrainerConfig(Config):
    """Length, devices and precision. "auto" values are resolved and printed when training starts."""

    epochs: Positive | Literal["auto"] = "auto"  # passes over the data; auto: 100, and at least 10 000 steps
    steps: Count | None = None  # optimiser steps, instead of epochs
    minutes: Positive | None = None  # until the run ends, instead of epochs or steps: schedules follow the clock
    batch_size: Count | Literal["auto"] = "auto"  # global: over all devices and micro-batches
    accumulate: Few = 1  # micro-batches per optimiser step and device
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: Few | Literal["auto"] = "auto"
    nodes: Few = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["auto", "32", "bf16", "fp16"] = "auto"  # auto: bf16 autocast on GPUs that support it
    compile: Literal["auto", "on", "off"] = "auto"  # blocks, heads and losses; auto: on CUDA devices
    seed: Seed = 0

    @field_validator("compile", mode="before")
    @classmethod
    def _on_or_off(cls, value: Any) -> Any:
        """YAML reads these words as truth values. Version 0.1 also had `graphs`, compiled code replayed on a GPU."""
        return {True: "on", False: "off", "graphs": "on"}.get(value, value) if isinstance(value, bool | str) else value

    @field_validator("precision", mode="before")
    @classmethod
    def _bits(cls, value: Any) -> Any:
        """YAML reads 32 as a number."""
        return "32" if value == 32 else value

    @model_validator(mode="after")
    def _one_length(self) -> TrainerConfig:
        epochs = None if self.epochs == "auto" else self.epochs
        lengths = {"epochs": epochs, "steps": self.steps, "minutes": self.minutes}
        given = [f"trainer.{name} ({value})" for name, value in lengths.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"give only one of {' and '.join(given)}")
        return self


class RunRecipe(Config):
    """What the recipes of all kinds of runs have. Each declares it itself, at its place in the written recipe."""

    if TYPE_CHECKING:
        data: Any  # with `path`
        trainer: TrainerConfig
        checkpoint: CheckpointConfig
        monitor: LoggingConfig

    def unresolved(self) -> list[str]:
        """The settings without which it is not the recipe of a run."""
        length = {
            "trainer.steps": self.trainer.steps or self.trainer.minutes,
            "trainer.batch_size": self.trainer.batch_size,
        }
        return [name for name, value in length.items() if value in (None, "auto")]


class Recipe(RunRecipe):
    """One pretraining run."""

    method: SerializeAsAny[MethodConfig]
    backbone: BackboneConfig = BackboneConfig()
    data: DataConfig
    optim: OptimConfig = OptimConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    monitor: MonitorConfig = MonitorConfig()

    @field_validator("method", mode="before")
    @classmethod
    def _choose_method(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("file") is not None:
            value = _loaded(value)
        return chosen_by_name(value, "method", method_names(), lambda name: method_class(name).Config)

    def kept_texts(self) -> dict[str, str]:
        file = self.method.file
        return {} if file is None else {METHOD_FILE: load_method_file(Path(file.path), file.sha256).text}


def _loaded(method: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method with the name that its file gives it; the file is run."""
    given = method["file"] if isinstance(method["file"], Mapping) else {"path": method["file"], "sha256": ""}
    file = MethodFile.parse(given, "method.file")
    loaded = load_method_file(Path(file.path), file.sha256 or None)
    if method.get("name", loaded.name) != loaded.name:
        raise UserError(f"method.name = {method['name']!r}, but {file.path} defines {loaded.name!r}")
    return {**method, "name": loaded.name, "file": {"path": file.path, "sha256": loaded.sha256}}


def load_recipe(
    name: str, overrides: Sequence[str] = (), values: Mapping[str, Any] | None = None, *, adapts: bool = False
) -> Recipe:
    """The recipe `name` (a YAML file, a shipped recipe, a method or its file), changed by `values`, then `overrides`.

    A recipe may have a section `on_cpu` with changes for machines without a GPU, so that a run takes minutes there. A
    length that the user gives replaces the recipe's. So does `backbone.name=init` with the sizes of its network.

    adapts: whether the run starts from the recipe's `model_to_adapt`, whose network it then takes.
    """
    written = _written(name)
    small, adapt = (_section(written.pop(part, {}), part) for part in ("on_cpu", "adapt"))
    if takes_small_form(name, overrides, values):
        written = merged(written, small)
    if adapts:
        start = {"backbone": {"name": NAME_OF_INIT}, "monitor": {"keep_better": True}}
        written = merged(_without_replaced(written, start), start)
        written = merged(written, {key: value for key, value in adapt.items() if key != "init"})
    written = _without_replaced(written, with_overrides(values or {}, overrides))
    complete = with_overrides(merged(written, values or {}), overrides)
    if "path" not in _section(complete.get("data"), "data"):
        raise UserError(f"the recipe {name!r} does not specify any images: give --data FOLDER (or data.path)")
    return Recipe.parse(complete)


def _section(value: Any, name: str) -> Mapping[str, Any]:
    """A part of a recipe, which may be missing."""
    if value is not None and not isinstance(value, Mapping):
        raise UserError(f"{name} = {value!r} must be a group of settings, such as {name}.key=value")
    return value or {}


def _without_replaced(written: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The written recipe without settings that contradict, not only precede, what the user gives."""
    replaced: dict[str, tuple[str, ...]] = {}
    trainer, backbone = (_section(given.get(name), name) for name in ("trainer", "backbone"))
    if any(length in trainer for length in _LENGTHS):
        replaced["trainer"] = _LENGTHS
    if backbone.get("name") == NAME_OF_INIT:
        replaced["backbone"] = FROM_WEIGHTS
    return dict(written) | {
        section: {key: value for key, value in _section(written.get(section), section).items() if key not in keys}
        for section, keys in replaced.items()
    }


def takes_small_form(name: str, overrides: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> bool:
    """Whether the recipe has a section for the CPU, and would train on the CPU of this machine."""
    if "on_cpu" not in _written(name):
        return False
    trainer = with_overrides(values or {}, overrides).get("trainer")
    chosen = trainer.get("accelerator", "auto") if isinstance(trainer, Mapping) else "auto"
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return chosen == "cpu" or (chosen == "auto" and not has_gpu)


def model_to_adapt(name: str, overrides: Sequence[str] = (), values: Mapping[str, Any] | None = None) -> str | None:
    """The model that a run of this recipe starts from if no other is given; None: from fresh weights.

    A recipe names it in a section `adapt`, with the settings that differ from those of a run from scratch. It needs
    the small form, whose network and what the section says about the method are left to the recipe.
    """
    given, adapt = with_overrides(values or {}, overrides), _section(_written(name).get("adapt"), "adapt")
    backbone, method = (_section(given.get(part), part) for part in ("backbone", "method"))
    own_network = any(key in backbone for key in ("name", *FROM_WEIGHTS))
    own_method = any(key in method for key in _section(adapt.get("method"), "adapt.method"))
    if own_network or own_method or not takes_small_form(name, overrides, values):
        return None
    model: str | None = adapt.get("init")
    return model


def _written(name: str) -> dict[str, Any]:
    """The content of a recipe. A method without one trains with its defaults."""
    if name.endswith(".py"):
        return {"method": {"file": str(user_path(name))}}
    if name in method_names() and name not in recipe_names():
        return {"method": {"name": name}}
    return read_yaml(find_recipe(name))


def find_recipe(name: str) -> Path:
    """The file of a recipe. A method's name means the shipped recipe of that name, for any folder of images."""
    return find_yaml(name, "method or recipe", _FOLDER, method_names())


def recipe_names() -> list[str]:
    return list(shipped_yaml(_FOLDER))
