"""Layer decay against timm's groups, schedules as functions of the step, and averaged weights against timm's."""

from typing import Any

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from timm.scheduler.cosine_lr import CosineLRScheduler
from timm.scheduler.multistep_lr import MultiStepLRScheduler
from timm.scheduler.poly_lr import PolyLRScheduler
from timm.scheduler.scheduler import Scheduler
from timm.utils import ModelEmaV3

from asterism.finetuning.classification.classify import Classify, ClassifyConfig
from asterism.finetuning.learner import average_momentum
from asterism.finetuning.optim import build_optimizer, learning_rate, parameter_groups, set_learning_rates
from asterism.finetuning.recipe import FinetuneOptimConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.teacher import Teacher
from asterism.types import Progress
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


def _timms(schedule: str, optimizer: torch.optim.Optimizer, steps: int, warmup: int) -> Scheduler:
    shared: dict[str, Any] = {"warmup_t": warmup, "warmup_lr_init": 1e-6, "t_in_epochs": False}
    if schedule == "cosine":
        return CosineLRScheduler(optimizer, t_initial=steps, lr_min=1e-3, **shared)
    if schedule == "poly":
        return PolyLRScheduler(optimizer, t_initial=steps, power=0.9, lr_min=1e-3, **shared)
    falls = [round(share * steps) for share in (0.75, 0.92)] if schedule == "steps" else []
    return MultiStepLRScheduler(optimizer, decay_t=falls, decay_rate=0.1, **shared)


@pytest.mark.parametrize("schedule", ["cosine", "poly", "steps", "constant"])
def test_rates_are_those_of_timm(schedule: Any) -> None:
    config = FinetuneOptimConfig(schedule=schedule, layer_decay=0.5, min_lr=1e-3, warmup_epochs=2)
    ours, theirs = (build_optimizer(Classify(ClassifyConfig(), start()), config, 0.7) for _ in range(2))
    scheduler = _timms(schedule, theirs, 20, 4)
    for step in (*range(20), 13, 2):
        scheduler.step_update(step)
        rate = set_learning_rates(ours, learning_rate(config, Progress(step, 20, steps_per_epoch=2), 0.7))
        assert [group["lr"] for group in ours.param_groups] == [group["lr"] for group in theirs.param_groups]
        assert rate == max(group["lr"] for group in ours.param_groups)


def test_the_warm_up_takes_half_of_a_run_at_most() -> None:
    rates = [learning_rate(FinetuneOptimConfig(), Progress(step, 8, 100), 1.0) for step in range(8)]
    assert rates[4] == pytest.approx(0.5, abs=1e-6), "the cosine starts with the run, as timm's"
    assert rates[:4] == sorted(rates[:4])
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_the_average_is_that_of_timm() -> None:
    ours, student = Teacher(torch.nn.Linear(3, 2)), torch.nn.Linear(3, 2)
    theirs = ModelEmaV3(ours.network, decay=0.9, use_warmup=True)
    for step in range(40):
        with torch.no_grad():
            student.weight.add_(torch.randn(2, 3, generator=torch.Generator().manual_seed(step)))
        ours.update(student, average_momentum(step, 0.9))
        theirs.update(student, step + 1)
        torch.testing.assert_close(ours.network.weight, theirs.module.weight)
