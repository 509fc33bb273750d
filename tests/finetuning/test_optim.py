"""Layer decay against timm's groups, schedules as functions of the step, and averaged weights against timm's."""

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from timm.utils import ModelEmaV3

from asterism.finetuning.classification.classify import Classify, ClassifyConfig
from asterism.finetuning.learner import average_momentum
from asterism.finetuning.optim import build_optimizer, build_schedule, parameter_groups
from asterism.finetuning.recipe import FinetuneOptimConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.teacher import Teacher
from tests.finetuning.tiny import BACKBONE, SWIN, start


@pytest.mark.parametrize(("config", "size"), [(BACKBONE, 16), (SWIN, 64)], ids=["vit", "swin"])
def test_learning_rates_and_decay_are_those_of_timm(config: BackboneConfig, size: int) -> None:
    task = Classify(ClassifyConfig(), start(config, size=size))
    arguments = {**task.backbone.architecture.arguments, "num_classes": 3, "global_pool": "token"}
    if config is SWIN:
        arguments["global_pool"] = "avg"
    theirs = timm.create_model(config.name, **arguments)
    names = {id(parameter): name for name, parameter in theirs.named_parameters()}
    groups = param_groups_layer_decay(
        theirs, weight_decay=0.05, layer_decay=0.7, no_weight_decay_list=theirs.no_weight_decay()
    )
    expected = {names[id(p)]: (g["lr_scale"], g["weight_decay"]) for g in groups for p in g["params"]}
    own = {id(parameter): name for name, parameter in task.named_parameters()}
    found = {
        own[id(p)]
        .replace("backbone.network.", "")
        .replace("head.classifier.", "head." if config is BACKBONE else "head.fc."): (
            group["lr_scale"],
            group["weight_decay"],
        )
        for group in parameter_groups(task, 0.05, 0.7)
        for p in group["params"]
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name


@pytest.mark.parametrize("schedule", ["cosine", "poly", "steps", "constant"])
def test_rates_are_a_function_of_the_step(schedule: str) -> None:
    config = FinetuneOptimConfig(schedule=schedule, layer_decay=0.5, min_lr=0.0, warmup_lr=0.0)
    optimizer = build_optimizer(Classify(ClassifyConfig(), start()), config, 1.0)
    rates = build_schedule(optimizer, config, steps=20, warmup=4)

    def at(step: int) -> list[float]:
        rates.step_update(step)
        return [group["lr"] for group in optimizer.param_groups]

    forwards = [at(step) for step in range(20)]
    assert [at(step) for step in (13, 2, 19, 0)] == [forwards[step] for step in (13, 2, 19, 0)]
    highest = [max(each) for each in forwards]
    assert highest[0] == 0
    assert highest[2] == pytest.approx(0.5)
    assert highest[-1] < 0.2 if schedule != "constant" else highest[-1] == 1
    scales = [group["lr_scale"] for group in optimizer.param_groups]
    assert forwards[7] == pytest.approx([max(forwards[7]) * scale for scale in scales])


def test_the_average_is_that_of_timm() -> None:
    ours, student = Teacher(torch.nn.Linear(3, 2)), torch.nn.Linear(3, 2)
    theirs = ModelEmaV3(ours.network, decay=0.9, use_warmup=True)
    for step in range(40):
        with torch.no_grad():
            student.weight.add_(torch.randn(2, 3, generator=torch.Generator().manual_seed(step)))
        ours.update(student, average_momentum(step, 0.9))
        theirs.update(student, step + 1)
        torch.testing.assert_close(ours.network.weight, theirs.module.weight)
