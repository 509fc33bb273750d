"""The contract of a task: what is predicted from an image, how it is learned from labels, and how it is measured.

To add a task, write a module with a subclass of `Task` and its `TaskConfig`, and name it in an entry point of the group
`asterism.tasks`. The module is imported only when the task is used. Everything else is shared: data
splits, workers, optimiser with layer decay, averaged weights, processes, checkpoints, exact resume, choice of the best
weights on held-out training images, early stop, `predict`, `evaluate`, the report and exports.

The life of a task:

    source = SomeTask.open(config, path, split)              # labelled images; raises a UserError for anything else
    task = SomeTask(config, Start(backbone, …, classes))     # before parameters are placed or sharded
    task.samples()(samples, keys) -> TaskBatch               # in data workers: augment, collate; random by key only
    task.loss(batch, progress) -> Losses                     # on the device
    task.predict(images) -> list[Prediction]                 # evaluation mode, images of any size
    task.metric().update(predictions, truths)                # then gathered(), over all processes
    task.drawing(image, prediction), task.writer(folder)     # for `predict` and the report
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from asterism.config import Config
from asterism.data import Sample, Source
from asterism.data.loader import Make
from asterism.errors import UserError, unknown
from asterism.finetuning.registry import load_task
from asterism.nn.backbone import Backbone
from asterism.nn.layer_depths import block_depths, undecayed
from asterism.ops.host import sent
from asterism.ops.normalise import Triple, normalise
from asterism.types import Losses, Progress
from asterism.viz.page import Section


def task_class(name: str) -> type[Task]:
    """The task of this name."""
    found: type[Task] = load_task(name)
    return found


class TaskConfig(Config):
    """Settings of a task. Its heads are sub-configs that differ in `name`: see `chosen_head`."""

    # Defaults of this task for the recipe's other sections.
    recipe_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    name: str

    def resolved(self, projection: Callable[[], Mapping[str, Tensor]]) -> TaskConfig:
        """The settings with everything decided that depends on the source.

        projection: reads the layers of the projection head that the source was pretrained with.
        """
        return self

    @property
    def takes_projection(self) -> bool:
        """Whether the task starts from layers of the pretrained projection head, `Start.projection`."""
        return False

    @property
    def needs_held_out(self) -> str | None:
        """Why held-out training images are needed (a clause), if the task decides something on them."""
        return None

    def check_micro_batch(self, images: int) -> None:
        """Raise a UserError if this number of images per process and micro-batch is impossible."""

    @property
    def usual_batch(self) -> int | None:
        """Images per step over all devices if the recipe does not set them; None: as in pretraining."""
        return None

    def usual_epochs(self, dim: int) -> float:
        """Passes over the data if the recipe does not set them; dim: channels of the backbone."""
        return 100.0

    def usual_layer_decay(self, dim: int) -> float:
        """Factor of the learning rate from each block to the one before it, if the recipe does not set them."""
        return 1.0


def chosen_head(value: Any, heads: Mapping[str, type[Config]]) -> Any:
    """For a validator (mode "before") of `head`: `head: linear`, or `head: {name: linear, …}`.

    Without a name it is the first of the heads, which should be the default of the task.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return value
    name = value.get("name", next(iter(heads)))
    if not isinstance(name, str) or name not in heads:
        raise unknown("head", str(name), heads)
    return heads[name].parse(value, section="task.head")


@dataclass(frozen=True)
class Prediction:
    """A task's prediction for one image, in its pixels. Each task has its own subclass."""


@dataclass(frozen=True)
class Truth:
    """The truth about one image, from its labels, in its pixels. Each task has its own subclass."""


@dataclass(frozen=True)
class TaskBatch:
    """A micro-batch. Tensors inside are moved to the device together, but not the keys."""

    images: Float[Tensor, "b 3 h w"] | tuple[Float[Tensor, "3 _ _"], ...]  # normalised
    truths: tuple[Any, ...]  # one per image, or tensors with one row per image: as the task's loss takes them
    keys: Int[Tensor, " b"]  # random key of each image, on the host: for stochastic depth, mixing

    def to(self, device: torch.device) -> TaskBatch:
        return replace(_mapped(self, lambda tensor: sent(tensor, device)), keys=self.keys)

    def pin_memory(self) -> TaskBatch:
        return _mapped(self, lambda tensor: tensor.pin_memory())


@runtime_checkable
class Metric(Protocol):
    """The task's own metric. Memory does not grow with the number of images, except where a protocol needs it."""

    def update(self, predictions: Sequence[Any], truths: Sequence[Any]) -> None: ...

    def gathered(self) -> Mapping[str, float]:
        """The values over the images of all processes. A collective: every process calls it."""
        ...


@runtime_checkable
class PredictionWriter(Protocol):
    """Writes the predictions of many images to a folder, in the formats that suit the task."""

    def add(self, key: str, image: UInt8[Tensor, "3 h w"], prediction: Any) -> None:
        """key: the image's path relative to the folder that was given, or the number of a frame."""
        ...

    def close(self) -> list[Path]:
        """Finish the files and return them."""
        ...


@dataclass(frozen=True)
class LinearClassifier:
    """A linear layer on the vector of an image, and the names of its outputs."""

    weight: Float[Tensor, "c d"]
    bias: Float[Tensor, " c"]
    takes_mean: bool  # the mean patch; else the network's own vector, which may be its class token
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """What a task is built from. `seed`: for fresh weights of the head."""

    backbone: Backbone  # with the weights to start from
    mean: Triple  # of RGB in [0, 1]: subtracted from the pixels
    std: Triple  # divides the result
    image_size: int  # pixels per side of a training image
    classes: tuple[str, ...]
    seed: int = 0
    projection: Mapping[str, Tensor] = field(default_factory=dict)  # the pretrained projection head: `0.weight`, …


class Task(nn.Module, ABC):
    """A backbone with a head. All state is in parameters and buffers; parts that are not trained need no gradient."""

    Config: ClassVar[type[TaskConfig]]
    primary: ClassVar[str]  # the metric that chooses the best weights; higher is better
    meanings: ClassVar[Mapping[str, str]]  # of `named_outputs`, with shapes, for readers of an export
    purpose: ClassVar[str]  # as the Hugging Face Hub calls what the task does
    canvas: tuple[int, int] | None = None  # height and width to which images are padded; None: they are not

    def __init__(self, config: TaskConfig, start: Start) -> None:
        super().__init__()
        self.config = config
        self.backbone = start.backbone
        self.mean, self.std, self.image_size, self.classes = start.mean, start.std, start.image_size, start.classes

    @classmethod
    @abstractmethod
    def open(cls, config: Any, path: str, split: str | None) -> Source:
        """The labelled images of a split (None: the training split if there is one, else everything)."""

    @classmethod
    def open_test(cls, config: Any, path: str, split: str | None) -> Source:
        """The labelled images to test on: by default the split test, or else val, or else everything."""
        from asterism.data.sources.splits import UnknownSplit

        for name in (split,) if split is not None else ("test", "val"):
            try:
                return cls.open(config, path, name)
            except UnknownSplit:
                if split is not None:
                    raise
        return cls.open(config, path, None)

    @classmethod
    def usual_image_size(cls, native: int, images: Callable[[], Source]) -> int:
        """Pixels per side of a training image if the recipe does not set them. native: that of the network."""
        return native

    @classmethod
    def class_names(cls, config: Any, source: Source) -> tuple[str, ...]:
        """The names of the classes that the labels of these images have."""
        assert source.classes is not None
        return tuple(source.classes)

    def labelled_like_training(self, source: Source) -> Source:
        """Images to test on, with labels in the numbering of the training images."""
        return source

    @abstractmethod
    def samples(self) -> Make[TaskBatch]:
        """What makes training batches of samples; picklable, without the network."""

    @abstractmethod
    def loss(self, batch: TaskBatch, progress: Progress) -> Losses:
        """Loss terms of a micro-batch, each a mean over the images of this process."""

    @abstractmethod
    def predict(self, images: Sequence[UInt8[Tensor, "3 _ _"]]) -> list[Any]:
        """Predictions for images of any size. The task is in evaluation mode, and gradients are disabled."""

    @abstractmethod
    def truth(self, sample: Sample) -> Any:
        """The labels of a sample, in the form that the metric takes."""

    @abstractmethod
    def metric(self) -> Metric:
        """A new metric, without any image."""

    def choosing_metric(self) -> Metric:
        """The metric on held-out training images, if it differs: it may also decide between parts of the task."""
        return self.metric()

    def decide(self, values: Mapping[str, float]) -> None:
        """Take decisions, in buffers, from the values of `choosing_metric`, before the weights are saved."""

    @abstractmethod
    def drawing(self, image: UInt8[Tensor, "3 h w"], prediction: Any) -> UInt8[Tensor, "3 _ _"]:
        """A picture of the prediction; it may also be given a truth."""

    @abstractmethod
    def writer(self, folder: Path) -> PredictionWriter:
        """Writes predictions to an existing folder."""

    @abstractmethod
    def error(self, prediction: Any, truth: Any) -> float:
        """How wrong a prediction is, to find the worst cases; 0: not at all."""

    @property
    @abstractmethod
    def preprocessing(self) -> str:
        """What `predict` does to an image before it is normalised, for readers of an export."""

    @abstractmethod
    def named_outputs(self, pixels: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        """What an exported model returns for normalised pixels, in evaluation mode.

        It must be recordable (`asterism.nn.graph`): no branch may depend on the number or size of the images, and no
        tensor may be made on a named device.
        """

    def probed_layer(self) -> nn.Linear | nn.Conv2d | None:
        """The linear layer that starts from a probe of the frozen network, see `asterism.finetuning.probing`."""
        return None

    def probe_rows(self, samples: Sequence[Sample]) -> Iterator[tuple[Float[Tensor, "n d"], Float[Tensor, "n c"]]]:
        """For each image, what that layer takes, and the share of every class that it should give."""
        raise NotImplementedError

    def chosen_probe(
        self, logits: Float[Tensor, "r m c"], targets: Float[Tensor, "m c"]
    ) -> tuple[int, Float[Tensor, " c"]]:
        """The best of the probes with these logits on rows that were left out, and what to add to its bias."""
        raise NotImplementedError

    def doubt(self, score: float, images: int) -> float:
        """By how much a score on so many held-out images may be higher by chance."""
        return 0.0

    def linear_classifier(self) -> LinearClassifier | None:
        """The head as one linear layer on the network's vector, for formats that have a place for it."""
        return None

    def remembered(self, prediction: Any, truth: Any) -> Any:
        """What `report` needs of one image: by default both; less for a task whose predictions take much memory."""
        return prediction, truth

    def report(self, pairs: Sequence[Any]) -> list[Section]:
        """Parts of the report from what is `remembered` of held-out images, such as a confusion matrix."""
        return []

    def depths(self) -> Iterator[tuple[str, nn.Parameter, int]]:
        """The depth of every trained parameter, as timm counts: embeddings 0, blocks from 1, and the head last."""
        found = block_depths(self.backbone)
        last = 1 + max(found.values())
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                yield name, parameter, found.get(name.removeprefix("backbone."), last)

    def learning_rate_scale(self, name: str) -> float:
        """A factor of a parameter's learning rate, besides that of its depth."""
        return 1.0

    def without_decay(self) -> set[str]:
        """Parameters that weight decay leaves alone although they are matrices: positions and tokens."""
        return {f"backbone.{name}" for name in undecayed(self.backbone)}

    def normalise(self, images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
        """Pixels as the backbone expects them, on its device."""
        weight = next(self.parameters())
        return normalise(images.to(weight.device), self.mean, self.std).to(weight.dtype)


def check_classes(source: Source, classes: Sequence[str], labels: Sequence[int]) -> None:
    """Refuse a class without images, and a single class."""
    if len(classes) < 2:
        raise UserError(f"{source.name} has {len(classes)} class ({', '.join(classes)}); a task needs at least two")
    missing = sorted(set(range(len(classes))) - set(labels))
    if missing:
        names = ", ".join(classes[place] for place in missing[:3])
        raise UserError(
            f"{len(missing)} of the {len(classes)} classes of {source.name} have no images: {names}"
            f"{' …' if len(missing) > 3 else ''}; add images, or remove the classes"
        )


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure of dataclasses, tuples, lists and mappings with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_mapped(part, change) for part in value)
    if isinstance(value, Mapping):
        return {name: _mapped(part, change) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _mapped(getattr(value, each.name), change) for each in fields(value)})
    return value
