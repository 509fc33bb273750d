"""A fine-tuned model as it is used: its file, and predictions for any images."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asterism.config import Config
from asterism.errors import UserError, reason_of
from asterism.files import replacing
from asterism.finetuning.recipe import NetworkConfig
from asterism.finetuning.run import MODEL_NAME, PROBE_NAME
from asterism.finetuning.task import Start, Task, TaskConfig, task_class
from asterism.images.pictures import Pictures, as_list, read_picture
from asterism.inputs import parse_json
from asterism.nn.backbone import Backbone, bare_network, rebuild_backbone
from asterism.nn.encoder import FILE_NAME, Encoder
from asterism.nn.safetensors_file import METADATA_KEY, read_safetensors, write_safetensors
from asterism.nn.weights.load import load_encoder
from asterism.nn.weights.metadata import ArchitectureDescription, check_fits, check_tensors, checked, description_in
from asterism.ranges import CountFromZero
from asterism.train.run import is_finetuned

_KIND = "fine-tuned"
_AT_ONCE = 32  # images


class ModelFile(Config):
    """The metadata of `model.safetensors`."""

    kind: Annotated[str, Field(pattern=f"^{_KIND}$")]
    task: dict[str, Any]
    network: NetworkConfig
    classes: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(min_length=1, max_length=1_000_000)
    step: CountFromZero | None


class FinetunedModel(Encoder):
    """An encoder with a task's head: `encode` gives features, `predict` what the task is about."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.backbone, task.mean, task.std, task.image_size)
        self.task = task
        self.canvas = task.canvas

    @torch.no_grad()
    def predict(self, images: Pictures) -> Any:
        """The prediction for one image, or a list of them for several: paths, PIL images, arrays or tensors."""
        self.eval()
        pictures = [read_picture(image) for image in as_list(images)]
        found = [
            prediction
            for first in range(0, len(pictures), _AT_ONCE)
            for prediction in self.task.predict(pictures[first : first + _AT_ONCE])
        ]
        single = not isinstance(images, list | tuple) and not (isinstance(images, Tensor) and images.ndim == 4)
        return found[0] if single and len(found) == 1 else found

    def named_outputs(self, pixels: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        """What the task makes of the images, and for some tasks the features too."""
        return self.task.named_outputs(pixels)

    def set_backbone(self, backbone: Backbone) -> None:
        self.backbone = self.task.backbone = backbone


def save_model(task: Task, folder: Path, step: int | None) -> None:
    """Write the whole model and its encoder. The model comes last: it is complete when it is there."""
    network = NetworkConfig(
        architecture=ArchitectureDescription.parse(asdict(task.backbone.architecture)),
        mean=task.mean,
        std=task.std,
        image_size=task.image_size,
    )
    config = task.config.model_dump(mode="json")
    description = ModelFile(kind=_KIND, task=config, network=network, classes=task.classes, step=step)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in task.state_dict().items()}
    path = folder / MODEL_NAME
    try:
        Encoder(task.backbone, task.mean, task.std, task.image_size).save(folder / FILE_NAME, step=step)
        write_safetensors(path, tensors, description.model_dump(mode="json"))
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {path}: {reason_of(error)}") from None


def keep_probe(folder: Path) -> None:
    """Keep the model of a run as the probe to compare with."""
    with replacing(folder / PROBE_NAME) as path:
        shutil.copyfile(folder / MODEL_NAME, path)


def saved_step(folder: Path) -> int | None:
    """The step of a run's model; None if there is none that can be read. Its encoder is written again if it differs."""
    try:
        model = load_model(folder)
    except UserError:
        return None
    try:
        encoder_step = load_encoder(folder / FILE_NAME).step
    except UserError:
        encoder_step = None
    if encoder_step != model.step:
        save_model(model.task, folder, model.step)
    return model.step


def model_file(place: Path) -> Path | None:
    """The file of a fine-tuned model: `place` itself, or one in this folder; None if there is none.

    A damaged one counts where a model must be, next to the encoder that is written with it. Otherwise the encoder
    alone would be loaded.
    """
    path = place / MODEL_NAME if place.is_dir() else place
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            described = parse_json((file.metadata() or {}).get(METADATA_KEY, "{}"))
    except Exception:  # on damaged headers safetensors raises almost any exception; the loader explains them
        return path if path.with_name(FILE_NAME).is_file() else None
    return path if isinstance(described, dict) and described.get("kind") == _KIND else None


def load_model(path: Path) -> FinetunedModel:
    """A fine-tuned model, in evaluation mode, from its file or from the folder of its run."""
    file = model_file(path)
    if file is None:
        if not path.exists():
            raise UserError(f"no such file or folder: {path}; give a run of `asterism finetune`")
        if (path / "config.yaml").is_file() and not is_finetuned(path):
            raise UserError(
                f"{path} is a run of `asterism pretrain`, which predicts nothing yet; fine-tune it first: "
                f"asterism finetune {path} --task classify --data LABELLED/"
            )
        raise UserError(f"{path} has no {MODEL_NAME} of a fine-tuned model; a run writes it with its first measurement")
    tensors, metadata = read_safetensors(file)
    described = ModelFile.parse(checked(ModelFile, description_in(metadata, file), file))
    config: TaskConfig = task_class(str(described.task.get("name"))).Config.parse(described.task, section="task")
    check_fits(lambda: bare_network(described.network.built()), tensors, file)
    check_fits(lambda: build_task(config, described.network, described.classes), tensors, file)
    task = build_task(config, described.network, described.classes)
    check_tensors(tensors, task.state_dict(), file)
    task.load_state_dict(dict(tensors))
    model = FinetunedModel(task.requires_grad_(False)).eval()
    model.step = described.step
    return model


def build_task(config: TaskConfig, network: NetworkConfig, classes: tuple[str, ...]) -> Task:
    """A task with weights that have yet to be loaded."""
    backbone = rebuild_backbone(network.built())
    start = Start(backbone, network.mean, network.std, network.image_size, classes)
    return task_class(config.name)(config, start)
