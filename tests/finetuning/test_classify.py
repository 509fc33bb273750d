"""Classification: mixing, gradients, heads, metrics."""

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from asterism.data import Sample
from asterism.errors import UserError
from asterism.finetuning.classification.classify import Accuracy, Classes, Classify, ClassifyConfig, Label
from asterism.finetuning.classification.probe import Probe, ProbeConfig
from asterism.finetuning.classification.timm_images import AugmentationConfig, MixingConfig, TimmImages, mixed
from asterism.finetuning.task import Task
from asterism.images.write import to_pillow
from asterism.types import Progress
from tests.finetuning.tiny import BACKBONE, SWIN, start

PROGRESS = Progress(0, 10, 5)


def samples(count: int) -> list[Sample]:
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 20, 30), dtype=torch.uint8, generator=draw)
    return [Sample(image, str(number), number % 3) for number, image in enumerate(images)]


def batch_for(task: Task, count: int = 4) -> Any:
    return task.samples()(samples(count), list(range(100, 100 + count)))


def test_augmentation_is_a_function_of_the_key_and_leaves_global_generators_alone() -> None:
    make = TimmImages(AugmentationConfig(), 16, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    state = torch.random.get_rng_state()
    first = make(samples(3), [5, 6, 7])
    again = pickle.loads(pickle.dumps(make))(samples(3)[::-1], [7, 6, 5])
    assert torch.equal(first.images, again.images.flip(0))
    assert not torch.equal(first.images, make(samples(3), [8, 9, 10]).images)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("magnitude", [0.0, 0.01, 2.5, 5.0, 7.5, 9.0, 9.99, 10.0, 30.0])
def test_every_augmentation_works_at_every_strength(magnitude: float) -> None:
    """At full strength timm asks for zero bits when posterising; a drawn magnitude is that high once in fifty times."""
    from timm.data.auto_augment import RandAugment

    images = TimmImages(AugmentationConfig(), 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    (policy,) = [step for step in images._transform.transforms if isinstance(step, RandAugment)]
    assert len(policy.ops) == 15
    for operation in policy.ops:
        operation.prob, operation.magnitude, operation.magnitude_std = 1.0, magnitude, 0
        assert operation(to_pillow(samples(1)[0].image)).size == (30, 20), operation.name


def test_neighbours_are_mixed_with_labels_in_the_same_proportion() -> None:
    """With images that are constant, the pixels show the share of each label, for mixup and for cutmix."""
    levels = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    images = levels.view(5, 1, 1, 1).expand(5, 3, 8, 8)
    labels = levels.long()
    pixels, targets = mixed(images, labels, torch.arange(5), MixingConfig(), 0.0, 2)
    torch.testing.assert_close(pixels.mean(dim=(1, 2, 3)), targets[:, 1], atol=1e-6, rtol=0)
    assert torch.equal(pixels[4], images[4])
    assert not torch.equal(pixels[:2], images[:2])
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(5))


def test_mixing_does_not_depend_on_the_number_of_processes() -> None:
    images, labels = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
    keys = torch.arange(50, 58)
    whole = mixed(images, labels, keys, MixingConfig(), 0.1, 3)
    parts = [mixed(images[p], labels[p], keys[p], MixingConfig(), 0.1, 3) for p in (slice(0, 4), slice(4, 8))]
    for one, two in zip(whole, zip(*parts, strict=True), strict=True):
        assert torch.equal(one, torch.cat(two))


def test_labels_are_smoothed_without_mixing() -> None:
    _, targets = mixed(torch.zeros(1, 3, 2, 2), torch.tensor([2]), torch.tensor([0]), None, 0.1, 4)
    torch.testing.assert_close(targets, torch.tensor([[0.025, 0.025, 0.925, 0.025]]))


@pytest.mark.parametrize("head", [{"name": "linear", "norm": True}, {"name": "first-layer", "hidden": 12}])
@pytest.mark.parametrize("config", [BACKBONE, SWIN], ids=["vit", "swin"])
def test_gradients_reach_every_trained_parameter(head: Mapping[str, Any], config: Any) -> None:
    size = config.image_size
    task = Classify(ClassifyConfig.parse({"head": {**head, "std": 0.02}}), start(config, size=size))
    torch.autograd.backward(task.loss(batch_for(task), PROGRESS).total)
    missing = [n for n, p in task.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert not missing


def test_a_probe_trains_its_classifiers_alone() -> None:
    task = Probe(ProbeConfig(learning_rates=(0.1, 1.0)), start())
    torch.autograd.backward(task.loss(batch_for(task), PROGRESS).total)
    assert all(parameter.grad is None for parameter in task.backbone.parameters())
    assert all(parameter.grad is not None for parameter in task.heads.parameters())
    assert {name.split(".")[0] for name, _, _ in task.depths()} == {"heads"}


def test_classifiers_of_a_probe_learn_as_if_alone() -> None:
    """The gradient of each is that of its own loss, whatever the others do."""
    torch.manual_seed(0)
    backbone = start().backbone
    together = Probe(ProbeConfig(learning_rates=(0.1, 1.0, 2.0)), _with(backbone))
    alone = Probe(ProbeConfig(learning_rates=(1.0,)), _with(backbone))
    for task in (together, alone):
        torch.autograd.backward(task.loss(batch_for(task), PROGRESS).total)
    torch.testing.assert_close(together.heads[1].weight.grad, alone.heads[0].weight.grad)
    assert together.learning_rate_scale("heads.2.weight") == 2.0


def _with(backbone: Any) -> Any:
    from dataclasses import replace

    return replace(start(), backbone=backbone)


def test_sparse_pooling_needs_concepts() -> None:
    with pytest.raises(UserError, match="sparse takes the mean concept token, but the source has none"):
        Classify(ClassifyConfig.parse({"head": {"name": "linear", "pooling": "sparse"}}), start())
    with_registers = BACKBONE.model_copy(update={"registers": 4})
    task = Classify(ClassifyConfig.parse({"head": {"name": "linear", "pooling": "sparse"}}), start(with_registers))
    pixels = torch.rand(2, 3, 16, 16)
    tokens = task.backbone(pixels)
    torch.testing.assert_close(task.named_outputs(pixels)["scores"], task.head(tokens.registers.mean(1)).softmax(1))


def test_accuracies_are_those_of_a_slow_loop() -> None:
    draw = torch.Generator().manual_seed(3)
    scores, labels = torch.rand(50, 7, generator=draw), torch.randint(0, 6, (50,), generator=draw).tolist()
    names = tuple("abcdefg")
    metric = Accuracy(7)
    metric.update([Classes(row, names) for row in scores], [Label(label, names[label]) for label in labels])
    right = [int(row.argmax()) == label for row, label in zip(scores, labels, strict=True)]
    five = [label in row.argsort(descending=True)[:5] for row, label in zip(scores, labels, strict=True)]
    by_class = [[r for r, label in zip(right, labels, strict=True) if label == each] for each in set(labels)]
    found = metric.gathered()
    assert found["top1"] == pytest.approx(100 * sum(right) / 50)
    assert found["top5"] == pytest.approx(100 * sum(five) / 50)
    assert found["mean_per_class"] == pytest.approx(100 * sum(sum(c) / len(c) for c in by_class) / len(by_class))
