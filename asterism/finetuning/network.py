"""The network that fine-tuning starts from: the source's, with other image size and stochastic depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.finetuning.recipe import NetworkConfig, SourceConfig
from asterism.nn.backbone import Architecture, Backbone, rebuild_backbone
from asterism.nn.weights.checkpoint_file import read_projection
from asterism.nn.weights.description import warn_of_guesses, weights_options
from asterism.nn.weights.load import LoadReport, load_weights_into, read_weights
from asterism.nn.weights.metadata import ArchitectureDescription
from asterism.train import checkpoint

_LARGE = 1024  # channels of ViT-L


def with_network(config: SourceConfig) -> SourceConfig:
    """The settings with the network of the source, and image size and drop path resolved."""
    weights = read_weights(config.path, weights_options(**config.options))
    if weights.asked is not None:
        raise UserError(weights.asked)
    warn_of_guesses(config.path, weights.guesses)
    arguments = dict(weights.architecture.arguments)
    probe = rebuild_backbone(weights.architecture)
    size = config.image_size or weights.image_size or probe.image_size
    if size % probe.patch_size:
        raise UserError(
            f"source.image_size = {size} is not a multiple of the patch size {probe.patch_size}; "
            f"choose {max(1, round(size / probe.patch_size)) * probe.patch_size}"
        )
    if size != probe.image_size:
        arguments["img_size"] = size
    architecture = {**asdict(weights.architecture), "arguments": arguments}
    network = NetworkConfig(
        architecture=ArchitectureDescription.parse(architecture, section="source.network.architecture"),
        mean=weights.mean,
        std=weights.std,
        image_size=size,
    )
    usual = 0.2 if probe.dim >= _LARGE else 0.1
    drop_path = usual if config.drop_path == "auto" else config.drop_path
    return config.model_copy(update={"network": network, "drop_path": drop_path})


def architecture_of(config: NetworkConfig) -> Architecture:
    return Architecture(**config.architecture.model_dump(mode="json", exclude_none=True))


def build_network(config: SourceConfig, seed: int) -> Backbone:
    """The network with fresh weights."""
    assert config.network is not None
    assert config.drop_path != "auto"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return rebuild_backbone(
            architecture_of(config.network), drop_path=config.drop_path, checkpointing=config.checkpointing
        )


def load_network(backbone: Backbone, config: SourceConfig) -> LoadReport:
    """Load the source's weights; positions are resampled to the network's grid."""
    return load_weights_into(backbone, config.path, **config.options)


def pretrained_projection(path: str) -> Mapping[str, Tensor]:
    """The layers of the projection head that the source was pretrained with: `0.weight`, `0.bias`, `2.weight`, …"""
    place = Path(path)
    if (place / "checkpoints").is_dir():
        found, _ = checkpoint.newest_intact(place / "checkpoints")
        return read_projection(found / "method.safetensors")
    return read_projection(place) if place.exists() else {}
