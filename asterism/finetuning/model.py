"""A fine-tuned model as it is used: its file, and predictions for any images."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor

from asterism.config import Config
from asterism.errors import UserError, reason_of
from asterism.finetuning.network import architecture_of
from asterism.finetuning.recipe import FinetuneRecipe, NetworkConfig
from asterism.finetuning.run import FinetunedRun
from asterism.finetuning.task import Start, Task, TaskConfig, task_class
from asterism.images.pictures import Pictures, as_list, read_picture
from asterism.nn.backbone import bare_network, rebuild_backbone
from asterism.nn.encoder import METADATA_KEY, Encoder, features_of, write_safetensors
from asterism.nn.weights.checkpoint_file import read_safetensors
from asterism.nn.weights.metadata import check_fits, checked, description_in
from asterism.ranges import CountFromZero

_KIND = "fine-tuned"
_AT_ONCE = 32  # images


class ModelFile(Config):
    """The metadata of `model.safetensors`."""

    kind: Annotated[str, Field(pattern=f"^{_KIND}$")]
    task: dict[str, Any]
    network: NetworkConfig
    classes: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(min_length=1, max_length=1_000_000)
    step: CountFromZero


class FinetunedModel(Encoder):
    """An encoder with a task's head: `encode` gives features, `predict` what the task is about."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.backbone, task.mean, task.std, task.image_size)
        self.task = task

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
        """The features, and what the task makes of them."""
        tokens = self.backbone(pixels)
        features = features_of(tokens, self.backbone.pool(tokens))
        return {"cls": features.cls, "patches": features.patches, **self.task.named_outputs(tokens)}


def save_model(task: Task, recipe: FinetuneRecipe, run: FinetunedRun, step: int) -> None:
    """Write the whole model and its encoder. The model comes last: it is complete when it is there."""
    assert recipe.source.network is not None
    description = ModelFile(
        kind=_KIND,
        task=task.config.model_dump(mode="json"),
        network=recipe.source.network,
        classes=task.classes,
        step=step,
    )
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in task.state_dict().items()}
    try:
        Encoder(task.backbone, task.mean, task.std, task.image_size).save(run.weights, step=step)
        write_safetensors(run.model, tensors, {METADATA_KEY: description.model_dump_json()})
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {run.model}: {reason_of(error)}") from None


def load_model(run: FinetunedRun) -> FinetunedModel:
    """The model of a fine-tuned run, in evaluation mode."""
    if not run.model.is_file():
        raise UserError(f"{run.path} has no {run.model.name} yet; it is written with the first measurement of the run")
    tensors, metadata = read_safetensors(run.model)
    described = ModelFile.parse(checked(ModelFile, description_in(metadata, run.model), run.model))
    config: TaskConfig = task_class(str(described.task.get("name"))).Config.parse(described.task, section="task")
    check_fits(lambda: bare_network(architecture_of(described.network)), tensors, run.model)
    task = build_task(config, described.network, described.classes)
    state = task.state_dict()
    if tensors.keys() != state.keys() or any(tensors[name].shape != state[name].shape for name in state):
        raise UserError(f"the tensors of {run.model} are not those of the model that it describes; it is damaged")
    task.load_state_dict(dict(tensors))
    model = FinetunedModel(task.requires_grad_(False)).eval()
    model.step = described.step
    return model


def build_task(config: TaskConfig, network: NetworkConfig, classes: tuple[str, ...]) -> Task:
    """A task with weights that have yet to be loaded."""
    backbone = rebuild_backbone(architecture_of(network))
    start = Start(backbone, network.mean, network.std, network.image_size, classes)
    return task_class(config.name)(config, start)
