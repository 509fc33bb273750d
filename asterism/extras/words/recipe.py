"""A recipe of alignment: all settings of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from asterism.config import Config, with_overrides
from asterism.errors import UserError
from asterism.extras.words.attention_pooling import ProbeConfig
from asterism.extras.words.pair_losses import CHUNK
from asterism.extras.words.towers.own_tower import TextConfig
from asterism.ranges import Count, FewFromZero, NonNegative, Number, Positive, Share, ShareBelowOne
from asterism.train.checkpoint import CheckpointConfig
from asterism.train.monitor import LoggingConfig
from asterism.train.optim import OptimConfig
from asterism.train.recipe import RunRecipe, TrainerConfig


class FrozenSourceConfig(Config):
    """The image encoder, which stays as it is."""

    path: str  # a run folder, a weights file, a timm name
    options: dict[str, Any] = Field(default={})  # what a weights file does not say: see `asterism.load`


class PairLossConfig(Config):
    """How the similarities of all pairs of a batch become a loss; see `asterism.extras.words.pair_losses`."""

    name: Literal["sigmoid", "softmax"] = "sigmoid"
    scale: Positive = 20.0  # initial factor of the similarities; its logarithm is trained
    bias: Number = -10.0  # initial summand of the sigmoid loss, trained too
    chunk: Count = CHUNK  # columns of similarities in memory; does not change the result


class CaptionDataConfig(Config):
    """Images with captions, and how their features are cached."""

    path: str  # .jsonl, .csv, COCO's captions, tar files, or scenes
    split: str | None = None  # None: everything
    held_out: ShareBelowOne = 0.05  # share of the images that is only measured; 0: none
    precision: Literal["float16", "float32"] = "float16"  # of the cached features
    encode_batch: Count = 64  # images encoded at a time
    workers: FewFromZero | Literal["auto"] = "auto"  # processes that decode images
    max_bad_share: Share = 0.05  # of unreadable images; above it the run stops


class AlignOptimConfig(OptimConfig):
    """AdamW for a small network on cached features."""

    lr: NonNegative = 1e-3
    lr_scaling: Literal["linear", "none"] = "none"
    warmup_share: Share | None = 0.05
    weight_decay: NonNegative = 0.05
    weight_decay_end: NonNegative = 0.05
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.98)
    clip: NonNegative = 1.0
    clip_by: Literal["tensor", "global"] = "global"


class AlignRecipe(RunRecipe):
    """One run of alignment."""

    source: FrozenSourceConfig
    data: CaptionDataConfig
    text: TextConfig = TextConfig()
    probe: ProbeConfig = ProbeConfig()
    loss: PairLossConfig = PairLossConfig()
    optim: AlignOptimConfig = AlignOptimConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    monitor: LoggingConfig = LoggingConfig()

    def unresolved(self) -> list[str]:
        return [*super().unresolved(), *(["probe.tokens"] if self.probe.tokens == "auto" else [])]


def load_align_recipe(
    source: str, text: str | None = None, options: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> AlignRecipe:
    """The defaults for a source and a text model, with `section.key=value` changes."""
    values = with_overrides({}, overrides)
    for section in ("source", "data", "text"):
        if not isinstance(values.get(section, {}), Mapping):
            raise UserError(f"{section} = {values[section]!r} must be a group of settings, such as {section}.key=value")
    if ignored := [key for key in ("path", "options") if key in values.get("source", {})]:
        raise UserError(f"source.{ignored[0]} cannot be set: the source is the first argument, asterism align SOURCE")
    if text is not None and "name" in values.get("text", {}):
        raise UserError(
            f"the text model is given twice: --text {text} and text.name={values['text']['name']}; keep one"
        )
    values["source"] = {**values.get("source", {}), "path": source, "options": dict(options or {})}
    if text is not None:
        values["text"] = {**values.get("text", {}), "name": text}
    if "path" not in values.get("data", {}):
        raise UserError(
            "no captioned images given: use --data with a .jsonl or .csv file, COCO's captions or tar files"
        )
    return AlignRecipe.parse(values)
