"""AdamW or Muon with the parameter groups, schedules and clipping that all methods share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from pydantic import model_validator
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.ops.schedules import cosine, warmup_cosine
from asterism.ops.sharding import is_sharded, whole
from asterism.ranges import NonNegative, Share, ShareBelowOne
from asterism.train.muon import Muon, hidden_matrices, muon_groups
from asterism.types import Progress


class OptimConfig(Config):
    """Linear warm-up, then cosine, per step. The defaults are those of DINO and its successors."""

    name: Literal["adamw", "muon"] = "adamw"  # muon: see train/muon.py; the papers use AdamW
    lr: NonNegative = 5e-4  # peak; for a global batch of 256 images if scaled
    lr_scaling: Literal["linear", "none"] = "linear"  # peak = lr · global batch / 256, or lr itself
    min_lr: NonNegative = 1e-6  # at the end, absolute
    schedule: Literal["cosine", "constant"] = "cosine"  # after the warm-up: down to min_lr, or peak throughout
    warmup_epochs: NonNegative = 10.0
    warmup_share: Share | None = None  # as a share of all steps, instead of warmup_epochs
    warmup_peak: Literal["last", "next"] = "last"  # first step at the peak: the last of the warm-up, or (MAE) the next
    decay: Literal["matrices", "all"] = "matrices"  # biases and 1-D parameters are not decayed, or (STELLAR) all are
    weight_decay: NonNegative = 0.04
    weight_decay_end: NonNegative = 0.4  # reached along a cosine
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)  # of AdamW
    clip: NonNegative = 0.0  # largest gradient norm; 0: no clipping
    clip_by: Literal["tensor", "global"] = "tensor"  # norm of each parameter's gradient, or of all together

    @model_validator(mode="before")
    @classmethod
    def _without_turns(cls, values: Any) -> Any:
        """With `muon_every` = n, Muon of version 0.1 updated every matrix in each n-th step alone."""
        if not isinstance(values, Mapping) or "muon_every" not in values:
            return values
        if values["muon_every"] != 1:
            warnings.warn("optim.muon_every is ignored: Muon updates every matrix in every step", stacklevel=2)
        return {name: value for name, value in values.items() if name != "muon_every"}

    def peak_lr(self, batch_size: int) -> float:
        return self.lr * batch_size / 256 if self.lr_scaling == "linear" else self.lr


def build_optimizer(module: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The configured optimiser. Each of its parameter groups says whether its weights decay."""
    if config.name == "muon" and is_sharded(module):
        raise UserError(
            "optim.name = muon needs whole matrices, but FSDP divides them; use trainer.strategy=ddp or adamw"
        )
    hidden = list(hidden_matrices(module)) if config.name == "muon" else []
    if config.name == "muon" and not hidden:
        raise UserError(
            "optim.name = muon, but this network has no trained matrices in transformer blocks or MLPs; set "
            "optim.name=adamw"
        )
    taken = {id(weight) for weight, _ in hidden}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in taken:
            is_matrix = parameter.ndim > 1 and not name.endswith(".bias")
            (decayed if is_matrix or config.decay == "all" else free).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decayed, "decays": True}, {"params": free, "decays": False}]
    # Fused AdamW makes one pass over each tensor instead of one per operation: on a CPU it takes a third of the time.
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in (*decayed, *free))
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=config.betas, fused=fused)
    if not hidden:
        return adamw
    return Muon(adamw, [group | {"decays": True} for group in muon_groups(hidden)])


def moment_bytes(module: nn.Module, config: OptimConfig) -> int:
    """Bytes of what the optimiser remembers of gradients: two moments of AdamW, one of Muon's matrices."""
    once = {id(weight) for weight, _ in hidden_matrices(module)} if config.name == "muon" else set[int]()
    trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
    return sum((1 if id(weight) in once else 2) * weight.numel() * weight.element_size() for weight in trained)


def set_schedules(optimizer: torch.optim.Optimizer, config: OptimConfig, progress: Progress, batch_size: int) -> float:
    """Set this step's learning rate and weight decay; returns the learning rate."""
    lr = learning_rate(config, progress, batch_size)
    decay = cosine(progress.step, progress.steps, config.weight_decay, config.weight_decay_end)
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = lr, decay if group["decays"] else 0.0
    return lr


def learning_rate(config: OptimConfig, progress: Progress, batch_size: int) -> float:
    """The learning rate of this step."""
    peak = config.peak_lr(batch_size)
    final = config.min_lr if config.schedule == "cosine" else peak
    share, epochs = config.warmup_share, config.warmup_epochs
    warmup = round(epochs * progress.steps_per_epoch if share is None else share * progress.steps)
    warmup = min(warmup, progress.steps)
    return warmup_cosine(progress.step, progress.steps, peak, final, warmup, first_peak=config.warmup_peak)


@runtime_checkable
class Clipping(Protocol):
    """Settings of the clipping of gradients."""

    @property
    def clip(self) -> float:
        """The largest norm; 0: no clipping."""
        ...

    @property
    def clip_by(self) -> Literal["tensor", "global"]:
        """The norm of each parameter's gradient, or of all together."""
        ...


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], config: Clipping) -> Tensor:
    """Clip in place, and return the norm of all gradients before clipping."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = torch.stack([whole(n) for n in torch._foreach_norm(gradients)])
    total = norms.norm()
    if config.clip > 0:
        measured = norms if config.clip_by == "tensor" else total.expand_as(norms)
        factors = (config.clip / (measured + 1e-6)).clamp(max=1.0)
        waits = factors.device.type != "cpu"  # reading a number from there would stop the queue of operations
        if waits or factors.min() < 1:
            torch._foreach_mul_(gradients, list(factors.unbind()))
    return total
