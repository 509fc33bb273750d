"""The contract between a method and the training loop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Protocol

from jaxtyping import Float
from pydantic import ConfigDict
from torch import Tensor

from asterism.config import Config
from asterism.nn.backbone import Backbone, BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.initialisation import Init
from asterism.nn.learner import Learner
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, Triple
from asterism.types import Batch, Losses, Progress, ViewSpec


class MethodFile(Config):
    """A file that defines a method and is not installed."""

    path: str
    sha256: str  # a run is resumed with the same content


class MethodConfig(Config):
    """Settings of a method. `name` is the name of the file that defines it."""

    name: str
    file: MethodFile | None = None  # None: an installed one of this name

    @property
    def needs_whole_batch(self) -> str | None:
        """The part of the loss that depends on the images of all processes, with its setting; None if there is none.

        `trainer.accumulate` = a must give the same result as a times as many processes. It does if the loss of an image
        depends only on that image or on those of its own process. If the loss depends on data that processes exchange
        (beyond what `after_update` applies), micro-batches cannot reproduce it, and the trainer refuses them.
        """
        return None


class UnopenedConfig(MethodConfig):
    """Settings of a method in a file, for reading a run without running the file, which may be somebody else's."""

    model_config = ConfigDict(extra="allow")


class Frozen(Protocol):
    """A network that a method uses but neither trains nor saves, such as `asterism.nn.frozen_encoder.FrozenEncoder`."""

    source: str  # the file or name that it was loaded from

    @property
    def fingerprint(self) -> str:
        """A hash of its weights and settings."""

    @property
    def bytes(self) -> int:
        """Memory of the weights."""


class Method(Learner[Batch]):
    """A method of self-supervised learning.

    A method owns its networks and memories as parameters and buffers, so that its `state_dict` is complete;
    `frozen_encoders` are the exception. `after_update` updates its teacher, centre and memories.
    """

    Config: ClassVar[type[MethodConfig]] = MethodConfig

    shows: ClassVar[str] = ""  # one sentence about `pictures`, for reports

    published_init: ClassVar[Init] = "timm"  # the authors' initialisation of the backbone

    config: MethodConfig
    backbone: Backbone  # the network that is trained; `--init` loads its weights
    mean: Triple = IMAGENET_MEAN  # of RGB in [0, 1]: subtracted from the pixels; set from the data's settings
    std: Triple = IMAGENET_STD  # divides the result
    # By the setting that names each. A resumed run loads them again, and refuses others.
    frozen_encoders: Mapping[str, Frozen] = MappingProxyType({})

    def __init__(self, config: MethodConfig, backbone: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = build_backbone(backbone, self.published_init)

    def backbone_was_loaded(self) -> None:
        """Called after weights were loaded into `backbone`: a teacher must start from the same."""

    @property
    @abstractmethod
    def views(self) -> tuple[ViewSpec, ...]:
        """The views of each image that `loss` takes, in order."""

    @abstractmethod
    def loss(self, batch: Batch, progress: Progress) -> Losses:
        """Loss terms of a micro-batch, each a mean over the images of this process."""

    def pictures(self, pixels: Float[Tensor, "b 3 h w"], key: int) -> dict[str, Float[Tensor, "b 3 h w"]]:
        """Pictures specific to this method, by name, as normalised pixels; `key` is for random draws."""
        return {}

    @abstractmethod
    def encoder(self) -> Encoder:
        """The network for use after training."""
