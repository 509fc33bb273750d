"""Small networks to export, with weights that make every part matter."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from asterism.nn.backbone import Architecture, Backbone, BackboneConfig, build_backbone, rebuild_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.graph import Graph, recording
from asterism.nn.swin import FEATURES_ONLY as SWIN_FEATURES
from asterism.nn.vit import FEATURES_ONLY as VIT_FEATURES

MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.25, 0.3)


def recorded(encoder: Encoder, dtype: torch.dtype = torch.float32) -> Any:
    """The graph as a recording of one batch; in seconds, unlike an ONNX file."""
    graph = Graph(encoder, dtype)
    with recording(), warnings.catch_warnings(action="ignore"):  # torch prefers torch.export, which is as slow
        return torch.jit.trace(graph, (graph.example(),), strict=False, check_trace=False)  # type: ignore[no-untyped-call]


def small_vit(**settings: Any) -> Encoder:
    """Two blocks on a grid of 4 × 4 patches."""
    sizes = {"image_size": 16, "patch_size": 4, "dim": 32, "depth": 2, "heads": 2}
    with _seeded():
        return _encoder(build_backbone(BackboneConfig(name="vit_tiny_patch16_224", **(sizes | settings))))


def timm_vit(name: str, **arguments: Any) -> Encoder:
    """The same sizes, with arguments that are timm's."""
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    with _seeded():
        pooling = "mean" if arguments.get("global_pool") == "avg" else None
        return _encoder(rebuild_backbone(Architecture(name, sizes | VIT_FEATURES | arguments, pooling=pooling)))


def small_swin(window: int = 4, depths: tuple[int, ...] = (2, 1, 1, 1), image_size: int = 32) -> Encoder:
    """Stages of 32, 16, 8 and 4 patches a side; the second block shifts its windows."""
    arguments = {
        "img_size": image_size,
        "patch_size": 1,
        "embed_dim": 8,
        "depths": list(depths),
        "num_heads": [1, 2, 2, 4],
        "window_size": window,
    }
    with _seeded():
        return _encoder(rebuild_backbone(Architecture("swin_tiny_patch4_window7_224", arguments | SWIN_FEATURES)))


@contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@torch.no_grad()
def _encoder(backbone: Backbone) -> Encoder:
    """Weights as after training: no part is zero, one or too small to be noticed."""
    for name, parameter in backbone.network.named_parameters():
        if name == "pos_embed" or "relative_position" in name or name.endswith(("bias", "gamma", "gamma_1")):
            parameter.add_(0.5 * torch.randn(parameter.shape))
    return Encoder(backbone, MEAN, STD).eval()
