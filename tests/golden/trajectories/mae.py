"""Ten steps of facebookresearch/mae."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism.methods.mae import Mae, MaeConfig
from asterism.nn.backbone import BackboneConfig
from asterism.ops.masking import keep_from_noise, mask_from_keep
from asterism.train.optim import OptimConfig
from asterism.types import Losses, Progress
from tests.golden.trajectories import movement
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.steps import train
from tests.golden.trajectories.teacher_and_student import SCHEDULE, Recorder, batch_at, progress_of
from tests.golden.vectors import Vectors, read

FILES = "mae*.npz"

TABLE = 1e-6  # README: sine-cosine positions


def replay(path: Path) -> Iterator[Compared]:
    vectors = read(path)
    fresh = AutoEncoder(method_of(vectors.params))
    for name in vectors.params["not_optimised_params"]:
        table = vectors[f"init__{name}"].numpy()
        yield Compared(f"position tables/{name}", fresh.student(name).numpy(), table, TABLE)
    network, record = run(vectors, torch.float32)
    yield from movement.first_step(vectors, record, network)
    for name in ("out_lr", "out_weight_decay"):
        yield record.compared(name, SCHEDULE, group="schedules")
    yield record.compared("out_mask", 0.0, group="masks")
    yield from movement.series(record, out_loss="loss", out_grad_norm="grad_norm", out_grad_norms="grad_norm")
    yield from movement.snapshots(record)
    yield from movement.final_networks(vectors, network)
    yield from movement.in_float64(run(vectors, torch.float64)[1])


@dataclass(frozen=True)
class AutoEncoder:
    """The tensors of our method by their official names."""

    method: Mae

    def ours(self, name: str) -> str:
        if name == "mask_token":
            return "decoder.mask_token"
        return f"decoder.{name.removeprefix('decoder_')}" if name.startswith("decoder_") else f"backbone.network.{name}"

    def student(self, name: str) -> Tensor:
        if name == "decoder_pos_embed":  # ours has no row for the class token, whose position is zero
            return torch.nn.functional.pad(self.method.decoder.positions, (0, 0, 1, 0))[None]
        return self.method.get_parameter(self.ours(name)).detach()

    def teacher(self, name: str) -> Tensor:
        raise LookupError(f"MAE has no teacher, so no {name} of one")

    @torch.no_grad()
    def load(self, vectors: Vectors) -> None:
        for key, tensor in vectors.arrays.items():
            if key == "init__decoder_pos_embed":
                self.method.decoder.positions.copy_(tensor[0, 1:])
            elif key.startswith("init__"):
                self.student(key.removeprefix("init__")).copy_(tensor)


def run(vectors: Vectors, dtype: torch.dtype) -> tuple[AutoEncoder, Recorder]:
    params = vectors.params
    method = method_of(params).to(dtype)
    network, record = AutoEncoder(method), Recorder(vectors)
    network.load(vectors)

    def loss(progress: Progress) -> Losses:
        noise = vectors["in_noise"][progress.step]
        keep = keep_from_noise(noise, params["mask_ratio"])
        record.add("out_mask", mask_from_keep(keep, noise.shape[1]))
        batch = batch_at(vectors, progress.step, dtype)
        if progress.step == 0:
            with torch.no_grad():
                tokens = method.backbone(batch.views[0].pixels, keep=keep)
                record.add("out_step0_pred", method.decoder(tokens, keep))
        return method.losses(batch, keep)

    for step in train(method, optim_config(params), params["steps"], progress_of(params), loss, params["batch_size"]):
        if step.progress.step == 0:
            for name in params["grad_norm_names"]:
                record.add(f"out_step0_grad__{name}", step.gradients[network.ours(name)])
        record.add("out_lr", step.lr)
        record.add("out_weight_decay", step.weight_decay)
        record.gradients(step, network)
        record.add("out_loss", step.losses.total)
        movement.record_snapshots(record, network)
    return network, record


def method_of(params: dict[str, Any]) -> Mae:
    config = MaeConfig(
        mask_ratio=params["mask_ratio"],
        target="normalised" if params["norm_pix_loss"] else "pixels",
        decoder_dim=params["decoder_embed_dim"],
        decoder_depth=params["decoder_depth"],
        decoder_heads=params["decoder_num_heads"],
    )
    backbone = BackboneConfig(
        image_size=params["image_size"],
        patch_size=params["patch_size"],
        dim=params["embed_dim"],
        depth=params["depth"],
        heads=params["num_heads"],
        mlp_ratio=params["mlp_ratio"],
        layer_norm_eps=params["layer_norm_eps"],
        drop_path=params["drop_path_rate"],
        positions="sincos",
    )
    return Mae(config, backbone)


def optim_config(params: dict[str, Any]) -> OptimConfig:
    return OptimConfig(
        lr=params["blr"],
        min_lr=params["min_lr"],
        warmup_epochs=params["warmup_epochs"],
        warmup_peak="next",
        weight_decay=params["weight_decay"],
        weight_decay_end=params["weight_decay"],
        betas=params["adamw_betas"],
        clip=params["clip_grad"] or 0.0,
    )
