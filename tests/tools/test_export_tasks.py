"""Exported segmentation and detection models, with every head, opened with the library they are for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

import asterism
from asterism.errors import UserError
from asterism.extras.detection.detect import Detect
from asterism.finetuning.model import FinetunedModel
from asterism.finetuning.segmentation.segment import Segment
from asterism.finetuning.task import Task
from asterism.nn.graph import Graph
from tests.export_samples import recorded
from tests.extras.detection.drawn import HEADS as DETECTORS
from tests.extras.detection.drawn import detector
from tests.finetuning.segmentation.tiny_heads import SMALL as SEGMENTERS
from tests.finetuning.segmentation.tiny_heads import segment
from tests.finetuning.tiny import SWIN, start

SHAPES = [(1, 16, 16), (3, 24, 40), (2, 8, 16)]  # images, height, width


@torch.no_grad()
def trained(task: Task) -> FinetunedModel:
    """As after training: classifiers that are sure of something, and batch norms with statistics."""
    torch.manual_seed(0)
    for name, module in task.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, nn.Conv2d) and name.endswith("classifier"):
            module.weight.normal_(std=0.3)
    return FinetunedModel(task).eval()


def picture(height: int, width: int, seed: int = 0) -> UInt8[Tensor, "3 h w"]:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def images(count: int, height: int, width: int) -> Float[Tensor, "b 3 h w"]:
    return torch.stack([picture(height, width, seed) for seed in range(count)]).float() / 255


@torch.no_grad()
def segmented(model: FinetunedModel, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the head, and the class of each pixel, without the code that is exported."""
    task, pixels = model.task, model.normalise(batch)
    assert isinstance(task, Segment)
    (logits,) = task.head(task.head.read(task.backbone, pixels, None), None)
    fine = nn.functional.interpolate(logits, batch.shape[2:], mode="bilinear", align_corners=False)
    return logits, fine.argmax(dim=1)


def check_segmentation(found: Any, model: FinetunedModel, batch: Tensor) -> None:
    logits, labels = segmented(model, batch)
    assert logits.std(dim=(2, 3)).max() > 0.02  # a head that was lost would say the same everywhere
    torch.testing.assert_close(torch.as_tensor(found["logits"]), logits, atol=1e-4, rtol=1e-5)
    assert (torch.as_tensor(found["labels"]) == labels).float().mean() > 0.99


@pytest.mark.parametrize("head", SEGMENTERS)
def test_segmentation_is_recorded_for_any_size(head: str) -> None:
    model = trained(segment(head))
    graph = recorded(model)
    for count, height, width in SHAPES:
        batch = images(count, height, width)
        check_segmentation(graph(batch), model, batch)


def test_segmentation_with_a_swin_has_one_size() -> None:
    model = trained(segment("upernet", start(SWIN, 3, 64)))
    graph = recorded(model)
    check_segmentation(graph(images(3, 64, 64)), model, images(3, 64, 64))
    with pytest.raises(RuntimeError, match="must match"):
        graph(images(1, 128, 32))


@pytest.mark.slow
def test_segmentation_as_onnx_at_any_size(tmp_path: Path) -> None:
    """UPerNet has everything that other heads have: several blocks, pooling to fixed grids, resizing, batch norms."""
    runtime = pytest.importorskip("onnxruntime")
    model = trained(segment("upernet"))
    asterism.export(model, "onnx", tmp_path / "out")
    session = runtime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    for count, height, width in SHAPES:
        batch = images(count, height, width)
        logits, labels = session.run(["logits", "labels"], {"images": batch.numpy()})
        check_segmentation({"logits": logits, "labels": labels}, model, batch)
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["classes"]) == ["c0", "c1", "c2"]
    assert json.loads(described["mean"]) == [0.5] * 3


def test_labels_of_a_graph_are_those_of_predict() -> None:
    """For an image of the size of a window; larger ones are covered by several."""
    model = trained(segment("fpn"))
    found = Graph(model)(picture(16, 16)[None].float() / 255)
    assert torch.equal(found["labels"][0], model.predict(picture(16, 16)).mask.long())


DETECTION: dict[str, dict[str, Any]] = {
    **{head: {"head": head} for head in DETECTORS},
    "windows": {"head": "mask-rcnn", "pyramid": "simple", "window": 3, "whole_blocks": 1},
    "swin": {"head": "faster-rcnn", "config": SWIN, "size": 64},
    "sure": {"head": "mask-rcnn", "score_threshold": 0.26},  # leaves rows without a detection
}


def detecting(kind: str) -> FinetunedModel:
    model = trained(detector(**DETECTION[kind]))
    with torch.no_grad():  # boxes of all kinds, so that they overlap and are cut off
        for name, parameter in model.task.named_parameters():
            if name.endswith(("bbox_pred.weight", "cls_logits.weight", "cls_score.weight", "box_layers.4.weight")):
                parameter.normal_(std=0.2)
    return model


def check_detections(found: Any, model: FinetunedModel, batch: Tensor) -> int:
    """Compares with the code that `predict` uses; returns the number of detections."""
    task = model.task
    assert isinstance(task, Detect)
    height, width = batch.shape[2:]
    pixels = nn.functional.pad(model.normalise(batch), (0, task.canvas[1] - width, 0, task.canvas[0] - height))
    with torch.no_grad():
        expected = task.head.detections(task.backbone, pixels, [(height, width)] * len(batch))
    found = {name: torch.as_tensor(output) for name, output in found.items()}
    for place, each in enumerate(expected):
        count = len(each.scores)
        torch.testing.assert_close(found["boxes"][place, :count], each.boxes, atol=1e-3, rtol=1e-5)
        torch.testing.assert_close(found["scores"][place, :count], each.scores, atol=1e-5, rtol=1e-5)
        assert torch.equal(found["labels"][place, :count], each.labels)
        if each.masks is not None:
            torch.testing.assert_close(found["masks"][place, :count], each.masks[:, 0], atol=1e-4, rtol=1e-5)
        assert not found["scores"][place, count:].any()
        assert (found["labels"][place, count:] == -1).all()
    return sum(len(each.scores) for each in expected)


@pytest.mark.parametrize("kind", DETECTION)
def test_detection_is_recorded_for_any_number_of_images(kind: str) -> None:
    model = detecting(kind)
    task = model.task
    assert isinstance(task, Detect)
    height, width = task.canvas
    graph = recorded(model)
    for count, tall, wide in ((1, height, width), (3, height - 9, width - 2), (2, height // 2, width)):
        batch = images(count, tall, wide)
        assert check_detections(graph(batch), model, batch) > 0
    with pytest.raises(RuntimeError):
        graph(images(1, height + 8, width))


def test_a_detector_that_finds_nothing_is_not_said_to_be_compared(tmp_path: Path) -> None:
    model = trained(detector(head="yolos", score_threshold=0.999))
    exported = asterism.export(model, "safetensors", tmp_path / "out")
    assert "no boxes were compared" in exported.notes[-1]
    assert "compared" not in " ".join(asterism.export(detecting("yolos"), "safetensors", tmp_path / "sees").notes)


@pytest.mark.slow
def test_detection_as_onnx(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = detecting("mask-rcnn")
    asterism.export(model, "onnx", tmp_path / "out")
    session = runtime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    described = session.get_modelmeta().custom_metadata_map
    assert json.loads(described["largest_size"]) == list(model.task.canvas)
    assert json.loads(described["classes"]) == ["c0", "c1", "c2"]
    assert f"fits into {model.task.canvas[0]}×{model.task.canvas[1]}" in described["preprocessing"]
    names = ["boxes", "scores", "labels", "masks"]
    for count, height, width in ((1, 32, 32), (3, 20, 29)):
        batch = images(count, height, width)
        found = dict(zip(names, session.run(names, {"images": batch.numpy()}), strict=True))
        assert check_detections(found, model, batch) > 0
    with pytest.raises(Exception, match=r"."):
        session.run(names, {"images": images(1, 40, 32).numpy()})


def test_coordinates_of_boxes_need_full_precision() -> None:
    with pytest.raises(UserError, match="need full precision; use --dtype float32"):
        recorded(detecting("faster-rcnn"), torch.float16)
    assert recorded(detecting("yolos"), torch.bfloat16)(images(1, 32, 32))["scores"].isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["upernet", "cascade-mask-rcnn"])
def test_our_own_file_predicts_the_same(kind: str, dtype: str, tmp_path: Path) -> None:
    model = detecting(kind) if kind in DETECTION else trained(segment(kind))
    asterism.export(model, "safetensors", tmp_path / "out", dtype=dtype)
    loaded = asterism.load(tmp_path / "out")
    assert loaded.task.classes == model.task.classes
    assert (loaded.mean, loaded.std, loaded.image_size) == (model.mean, model.std, model.image_size)
    if dtype == "float16":
        model.load_state_dict({name: tensor.half().float() for name, tensor in model.state_dict().items()})
    ours, theirs = model.predict(picture(20, 30)), loaded.predict(picture(20, 30))
    if kind == "upernet":
        assert torch.equal(ours.mask, theirs.mask)
    else:
        torch.testing.assert_close(theirs.boxes, ours.boxes)
        assert theirs.run_lengths == ours.run_lengths


@pytest.mark.parametrize("target", ["timm", "hf"])
@pytest.mark.parametrize("kind", ["upernet", "yolos"])
def test_formats_without_a_place_for_the_head_get_the_encoder(kind: str, target: str, tmp_path: Path) -> None:
    if target == "hf":
        pytest.importorskip("transformers")
    model = detecting(kind) if kind in DETECTION else trained(segment(kind))
    exported = asterism.export(model, target, tmp_path / "out")
    assert any("the head is left out" in note and "safetensors keep it" in note for note in exported.notes)
    found = asterism.load(tmp_path / "out").encode(images(2, 16, 16))
    torch.testing.assert_close(found.patches, model.encode(images(2, 16, 16)).patches, atol=1e-5, rtol=0)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "The image encoder of a model that was fine-tuned for" in card
    assert "pipeline_tag: image-feature-extraction" in card


def test_the_card_names_the_task_its_classes_and_its_preprocessing(tmp_path: Path) -> None:
    asterism.export(trained(segment("linear4")), "safetensors", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: image-segmentation" in card
    assert "| classes | 3: c0, c1, c2 |" in card
    assert "mean 0.5, 0.5, 0.5, std 0.2, 0.2, 0.2" in card
    assert "has no classes" not in card
