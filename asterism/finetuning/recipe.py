"""A recipe of fine-tuning: all settings of one run, from a task's defaults, a shipped recipe or a YAML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from asterism.config import Config, chosen_by_name, find_yaml, merged, read_yaml, shipped_yaml, with_overrides
from asterism.errors import UserError, unknown
from asterism.finetuning.registry import task_names
from asterism.finetuning.task import TaskConfig, task_class
from asterism.nn.backbone import Architecture
from asterism.nn.weights.metadata import ArchitectureDescription, Mean, Std
from asterism.ranges import (
    Count,
    CountFromZero,
    Few,
    FewFromZero,
    InnerShare,
    NonNegative,
    Pixels,
    Positive,
    PositiveShare,
    Share,
    ShareBelowOne,
)
from asterism.train.checkpoint import CheckpointConfig
from asterism.train.monitor import LoggingConfig
from asterism.train.recipe import RunRecipe, TrainerConfig

_FOLDER = "recipes/finetuning"
# Settings that exclude each other, by section: one that a user gives replaces those of the recipe.
_ALTERNATIVES = {"trainer": ("epochs", "steps", "minutes"), "data": ("label_share", "label_list")}


class NetworkConfig(Config):
    """The network of the source, as the run found it. Recorded by the run, so that resuming needs no source."""

    architecture: ArchitectureDescription
    mean: Mean
    std: Std
    image_size: Pixels

    def built(self) -> Architecture:
        return Architecture(**self.architecture.model_dump(mode="json", exclude_none=True))


class SourceConfig(Config):
    """The weights to start from, and changes to their network."""

    path: str  # a run folder, a weights file, a timm name
    options: dict[str, Any] = Field(default={})  # what a weights file does not say: see `asterism.load`
    weights: Literal["pretrained", "fresh"] = "pretrained"  # fresh: the same network from scratch, to compare with
    image_size: Pixels | None = None  # None: that of the source; position tables are resampled
    drop_path: ShareBelowOne | Literal["auto"] = "auto"  # stochastic depth at the last block; auto: 0.1, large nets 0.2
    checkpointing: bool = False  # recompute blocks in the backward pass: less memory, a third more time
    network: NetworkConfig | None = None  # written by the run


class LabelledDataConfig(Config):
    """Where the labelled images come from and how they are loaded."""

    path: str  # a folder, shards, an annotation file, or the name of a data set
    split: str | None = None  # None: the training split if there is one, else everything
    label_share: PositiveShare = 1.0  # class-balanced share of the images, drawn from the seed
    label_list: str | None = None  # instead of a share: a text file with the names of the images
    workers: FewFromZero | Literal["auto"] = "auto"  # processes that make batches; 0: the training process
    prefetch: Few = 2  # micro-batches that each worker prepares in advance
    max_bad_share: Share = 0.05  # of unreadable images; above it the run stops

    @model_validator(mode="after")
    def _one_of_both(self) -> LabelledDataConfig:
        if self.label_list is not None and self.label_share != 1:
            raise ValueError("give label_share or label_list, not both")
        return self


class FinetuneOptimConfig(Config):
    """The optimiser, with learning rates that fall from the head to the first block, and its schedule, per step."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: NonNegative = 5e-4  # peak, of the head; for a batch of `lr_batch` images if scaled
    lr_scaling: Literal["linear", "none"] = "linear"
    lr_batch: Count = 256  # peak = lr · global batch / lr_batch
    min_lr: NonNegative = 1e-6
    schedule: Literal["cosine", "poly", "steps", "constant"] = "cosine"  # after the warm-up
    power: Positive = 0.9  # of poly
    milestones: tuple[InnerShare, ...] = (0.75, 0.92)  # of steps: shares of the run after which the rate falls to 1/10
    warmup_epochs: NonNegative = 5.0
    warmup_steps: CountFromZero | None = None  # instead of warmup_epochs
    warmup_lr: NonNegative = 1e-6  # at the first step
    layer_decay: PositiveShare | Literal["auto"] = "auto"  # of the rate, per block from the last to the first
    weight_decay: NonNegative = 0.05  # not of biases, norms, positions and tokens
    momentum: ShareBelowOne = 0.9  # of sgd
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)  # of adamw
    clip: NonNegative = 0.0  # largest gradient norm; 0: no clipping
    clip_by: Literal["tensor", "global"] = "global"

    def peak_lr(self, batch_size: int) -> float:
        return self.lr * batch_size / self.lr_batch if self.lr_scaling == "linear" else self.lr


class AverageConfig(Config):
    """An exponential moving average of the weights, which is what is measured, chosen and kept."""

    decay: ShareBelowOne = 0.9999  # at most: it grows as 1 - (1 + step)^(-2/3), as in timm


class ValidationConfig(Config):
    """Held-out training images, which choose the best weights and end training early. Test images never do."""

    share: InnerShare = 0.1  # of every class
    every_epochs: Positive | None = None  # None: once per epoch, and at most fifty times in a run
    patience: Count | None = 15  # measurements without a better one after which training ends; None: never


class FinetuneRecipe(RunRecipe):
    """One run of fine-tuning."""

    task: SerializeAsAny[TaskConfig]
    source: SourceConfig
    data: LabelledDataConfig
    optim: FinetuneOptimConfig = FinetuneOptimConfig()
    average: AverageConfig | None = AverageConfig()  # None: no average
    validation: ValidationConfig | None = ValidationConfig()  # None: train on all images and keep the last weights
    trainer: TrainerConfig = TrainerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    monitor: LoggingConfig = LoggingConfig()

    @field_validator("task", mode="before")
    @classmethod
    def _choose_task(cls, value: Any) -> Any:
        return chosen_by_name(value, "task", task_names(), lambda name: task_class(name).Config)

    @model_validator(mode="after")
    def _held_out_where_needed(self) -> FinetuneRecipe:
        reason = self.task.needs_held_out
        if self.validation is None and reason is not None:
            raise ValueError(f"validation = null, but {reason}; give validation.share")
        return self

    def unresolved(self) -> list[str]:
        return [*super().unresolved(), *(["source.network"] if self.source.network is None else [])]


def load_finetune_recipe(
    source: str,
    *,
    task: str | None = None,
    recipe: str | None = None,
    options: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> FinetuneRecipe:
    """The recipe for a task with its defaults, or a shipped recipe or YAML file, with `section.key=value` changes.

    `head=NAME` is short for `task.head.name=NAME`, and `head.KEY` for `task.head.KEY`.
    """
    if (task is None) == (recipe is None):
        raise UserError("give a task or a recipe: --task classify, or --recipe NAME (see `asterism list tasks`)")
    if task is not None and task not in task_names():
        raise unknown("task", task, task_names())
    written = {"task": {"name": task}} if recipe is None else read_yaml(find_finetune_recipe(recipe))
    changes = with_overrides({}, [_long_form(override) for override in overrides])
    if "path" in _section(changes.get("source")):
        raise UserError("source.path cannot be set: the source is the first argument, asterism finetune SOURCE")
    complete = merged(_without_alternatives(_full(written), changes), _full(changes))
    complete = merged(complete, {"source": {"path": source, "options": dict(options or {})}})
    name = _section(complete.get("task")).get("name")
    if isinstance(name, str) and name in task_names():
        complete = merged(task_class(name).Config.recipe_defaults, complete)
    if "path" not in _section(complete.get("data")):
        raise UserError("no labelled images given: use --data with a folder, an annotation file or a data set's name")
    return FinetuneRecipe.parse(complete)


def find_finetune_recipe(name: str) -> Path:
    return find_yaml(name, "recipe of fine-tuning", _FOLDER)


def finetune_recipe_names() -> list[str]:
    return list(shipped_yaml(_FOLDER))


def _without_alternatives(written: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(written)
    for section, keys in _ALTERNATIVES.items():
        if any(key in _section(changes.get(section)) for key in keys):
            result[section] = {key: value for key, value in _section(written.get(section)).items() if key not in keys}
    return result


def _long_form(override: str) -> str:
    key, separator, value = override.partition("=")
    key = key.strip()
    if key == "head":
        return f"task.head.name{separator}{value}"
    return f"task.{key}{separator}{value}" if key.startswith("head.") else override


def _full(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with `task: NAME` and `head: NAME` written as sections."""
    result = dict(values)
    if isinstance(result.get("task"), str):
        result["task"] = {"name": result["task"]}
    task = result.get("task")
    if isinstance(task, Mapping) and isinstance(task.get("head"), str):
        result["task"] = {**task, "head": {"name": task["head"]}}
    return result


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
