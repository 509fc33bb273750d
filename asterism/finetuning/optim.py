"""Optimiser and schedule of fine-tuning: parameter groups by depth, and learning rates, as timm makes them."""

from __future__ import annotations

from typing import Any

import torch

from asterism.finetuning.recipe import FinetuneOptimConfig
from asterism.finetuning.task import Task
from asterism.ops.schedules import cosine
from asterism.types import Progress


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
    """lr: peak of the head; `set_learning_rates` gives every group its part."""
    assert config.layer_decay != "auto"
    groups = parameter_groups(task, config.weight_decay, config.layer_decay)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=config.momentum)
    fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, lr=lr, betas=config.betas, fused=fused)


def learning_rate(config: FinetuneOptimConfig, progress: Progress, peak: float) -> float:
    """The rate of the head in this step: a linear warm-up, then the schedule over all steps, as timm's schedulers."""
    step, steps = progress.step, max(progress.steps, 2)
    warmup = round(config.warmup_epochs * progress.steps_per_epoch)
    warmup = min(progress.steps // 2, warmup if config.warmup_steps is None else config.warmup_steps)
    first, last = min(config.warmup_lr, peak), min(config.min_lr, peak)
    if step < warmup:
        return first + step * ((peak - first) / warmup)
    if config.schedule == "cosine":
        return cosine(step, steps, peak, last)
    if config.schedule == "poly":
        return last + (peak - last) * (1 - step / steps) ** config.power
    falls = config.milestones if config.schedule == "steps" else ()
    return peak * 0.1 ** sum(round(share * progress.steps) <= step + 1 - warmup for share in falls)


def set_learning_rates(optimizer: torch.optim.Optimizer, rate: float) -> float:
    """Give every group its part of the head's rate; returns the largest."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]
    return max(group["lr"] for group in optimizer.param_groups)
