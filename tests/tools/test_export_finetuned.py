"""Exports of fine-tuned classifiers: the other library's own code gives the probabilities that `predict` gives."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

import asterism
from asterism.finetuning.classification.classify import Classify, ClassifyConfig
from asterism.finetuning.classification.probe import Probe, ProbeConfig
from asterism.finetuning.model import FinetunedModel
from tests.export_samples import recorded
from tests.finetuning.tiny import BACKBONE, start

SIDE = BACKBONE.image_size
HEADS: dict[str, dict[str, Any]] = {
    "linear": {"name": "linear"},
    "mean patch": {"name": "linear", "pooling": "mean"},
    "norm": {"name": "linear", "norm": True},
    "first layer": {"name": "first-layer", "hidden": 12},
}
IN_TIMM_AND_TRANSFORMERS = ("linear", "mean patch")  # which have a place for one linear layer


def model(head: str) -> FinetunedModel:
    torch.manual_seed(0)
    task = Classify(ClassifyConfig.parse({"head": {**HEADS[head], "std": 0.3}}), start(BACKBONE, classes=3))
    return FinetunedModel(task).eval()


def pictures() -> list[UInt8[Tensor, "3 h w"]]:
    """Squares of the model's size, of which `predict` takes the whole, so that all libraries see the same pixels."""
    draw = torch.Generator().manual_seed(1)
    return list(torch.randint(0, 256, (3, 3, SIDE, SIDE), dtype=torch.uint8, generator=draw))


def expected(found: FinetunedModel) -> Float[Tensor, "3 c"]:
    return found.named_outputs(found.normalise(torch.stack(pictures())))["scores"].detach()


def pixels() -> Float[Tensor, "3 3 h w"]:
    return torch.stack(pictures()).float() / 255


def with_onnx(folder: Path) -> Float[Tensor, "3 c"]:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["scores"], {"images": pixels().numpy()})[0])


def with_timm(folder: Path) -> Float[Tensor, "3 c"]:
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    settings = timm.data.resolve_model_data_config(network)
    mean, std = (torch.tensor(settings[name])[:, None, None] for name in ("mean", "std"))
    return network((pixels() - mean) / std).softmax(dim=1).detach()


def with_transformers(folder: Path) -> Float[Tensor, "3 c"]:
    transformers = pytest.importorskip("transformers")
    network = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert network.config.id2label == {0: "c0", 1: "c1", 2: "c2"}
    details = json.loads((folder / "preprocessor_config.json").read_text())
    mean, std = (torch.tensor(details[name])[:, None, None] for name in ("image_mean", "image_std"))
    return network((pixels() - mean) / std).logits.softmax(dim=1).detach()


def with_asterism(folder: Path) -> Float[Tensor, "3 c"]:
    loaded = asterism.load(folder)
    assert isinstance(loaded, FinetunedModel)
    assert loaded.task.classes == ("c0", "c1", "c2")
    return expected(loaded)


OPENED: dict[str, Callable[[Path], Float[Tensor, "3 c"]]] = {
    "onnx": with_onnx,
    "timm": with_timm,
    "hf": with_transformers,
    "safetensors": with_asterism,
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("target", OPENED)
def test_probabilities_are_those_of_the_model(target: str, head: str, tmp_path: Path) -> None:
    found = model(head)
    exported = asterism.export(found, target, tmp_path / "out")
    if target in ("timm", "hf") and head not in IN_TIMM_AND_TRANSFORMERS:
        assert any("the head is left out" in note for note in exported.notes)
        return
    scores = OPENED[target](tmp_path / "out")
    assert scores.std(dim=1).min() > 0.02  # a head that was lost would say the same of every class
    torch.testing.assert_close(scores, expected(found), atol=1e-5, rtol=0)


def test_predictions_are_the_outputs_of_the_graph() -> None:
    """`expected` above is what a user sees, apart from resizing: a square of the usual size is cropped."""
    found = model("linear")
    blank = torch.full((3, 40, 40), 90, dtype=torch.uint8)
    outputs = found.named_outputs(found.normalise(blank[None, :, :SIDE, :SIDE]))["scores"][0]
    torch.testing.assert_close(found.predict(blank).scores, outputs.detach(), atol=1e-6, rtol=0)


def test_a_linear_probe_is_recorded_with_its_chosen_classifier() -> None:
    torch.manual_seed(0)
    task = Probe(ProbeConfig(learning_rates=(0.1, 1.0), feature="cls"), start(BACKBONE, classes=3))
    for head in task.heads:
        torch.nn.init.normal_(head.weight, std=0.3)
    task.chosen.fill_(1)
    found = FinetunedModel(task).eval()
    scores = recorded(found)(pixels())["scores"]
    torch.testing.assert_close(scores, expected(found), atol=1e-5, rtol=0)
    task.chosen.fill_(0)
    assert not torch.allclose(scores, expected(found), atol=1e-3)
