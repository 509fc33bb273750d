"""Optimiser and schedule of fine-tuning: parameter groups by depth, as timm makes them, and timm's schedulers."""

from __future__ import annotations

from typing import Any

import torch

from asterism.finetuning.recipe import FinetuneOptimConfig
from asterism.finetuning.task import Task


def parameter_groups(task: Task, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
    """Groups with and without weight decay for every `lr_scale`, which is layer_decay^(depth of the head - depth)."""
    free = task.without_decay()
    found = list(task.depths())
    last = max(depth for _, _, depth in found)
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter, depth in found:
        decayed = parameter.ndim > 1 and name not in free
        scale = layer_decay ** (last - depth) * task.learning_rate_scale(name)
        group = {"params": [], "lr_scale": scale, "weight_decay": weight_decay * decayed}
        groups.setdefault((scale, decayed), group)["params"].append(parameter)
    return list(groups.values())


def build_optimizer(task: Task, config: FinetuneOptimConfig, lr: float) -> torch.optim.Optimizer:
    """lr: peak of the head; every group has it times its `lr_scale`, once `schedule` has set it."""
    assert config.layer_decay != "auto"
    groups = parameter_groups(task, config.weight_decay, config.layer_decay)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=config.momentum)
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, lr=lr, betas=config.betas, fused=fused)


def build_schedule(optimizer: torch.optim.Optimizer, config: FinetuneOptimConfig, steps: int, warmup: int) -> Any:
    """A scheduler of timm; `step_update(step)` sets the learning rates as a function of the step alone."""
    from timm.scheduler.cosine_lr import CosineLRScheduler
    from timm.scheduler.multistep_lr import MultiStepLRScheduler
    from timm.scheduler.poly_lr import PolyLRScheduler

    lr = max((group["lr"] for group in optimizer.param_groups), default=0.0)
    shared: dict[str, Any] = {"warmup_t": warmup, "warmup_lr_init": min(config.warmup_lr, lr), "t_in_epochs": False}
    if config.schedule == "cosine":
        return CosineLRScheduler(optimizer, t_initial=max(steps, 2), lr_min=min(config.min_lr, lr), **shared)
    if config.schedule == "poly":
        lr_min = min(config.min_lr, lr)
        return PolyLRScheduler(optimizer, t_initial=max(steps, 2), power=config.power, lr_min=lr_min, **shared)
    falls = config.milestones if config.schedule == "steps" else ()
    return MultiStepLRScheduler(optimizer, decay_t=[round(share * steps) for share in falls], decay_rate=0.1, **shared)
