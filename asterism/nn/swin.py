"""timm's Swin transformers: tokens of the final stage, no class token; masks cover whole tokens of that stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, Backbone, BackboneConfig
from asterism.nn.needed_outputs import NeededPatches
from asterism.nn.stochastic_depth import branch_factors, install_drop_paths, run_block
from asterism.nn.timm_models import create_network
from asterism.ops.host import sent
from asterism.types import Tokens

_STAGES = 4
_SHRINK = 2 ** (_STAGES - 1)  # each later stage halves the grid
_HEAD_WIDTH = 32  # channels per head in every published Swin

# No classifier and no pooling; windows adapt to any input size; stochastic depth is ours.
FEATURES_ONLY: dict[str, Any] = {"num_classes": 0, "global_pool": "", "strict_img_size": False, "drop_path_rate": 0.0}


def build(config: BackboneConfig) -> Swin:
    """A Swin transformer with fresh weights."""
    architecture = Architecture(config.name, _arguments(config))
    return Swin(
        architecture,
        drop_path=config.drop_path,
        mask_token=config.mask_token,
        checkpointing=config.checkpointing,
    )


class Swin(Backbone):
    """A timm `SwinTransformer` as a `Backbone`. Without keys it computes timm's `forward_features`."""

    takes_masks: ClassVar[bool] = False
    network: Any

    def __init__(
        self,
        architecture: Architecture,
        *,
        drop_path: float = 0.0,
        mask_token: bool = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        network = create_network(architecture.name, dict(architecture.arguments))
        self.architecture = architecture
        self.network = network
        self.dim = network.num_features
        self.patch_size = network.patch_embed.patch_size[0] * _SHRINK
        self.image_size = network.patch_embed.img_size[0]
        self.depth = len(self._blocks)
        self.first_block = self.depth - len(network.layers[-1].blocks)
        self.has_cls = False
        self.registers = 0
        self.drop_path = drop_path
        self.checkpointing = checkpointing
        self.mask_token = nn.Parameter(torch.zeros(1, network.embed_dim)) if mask_token else None
        if self.image_size % self.patch_size:
            raise UserError(
                f"backbone.image_size = {self.image_size} is not a multiple of {self.patch_size} ({architecture.name})"
            )
        if drop_path:
            install_drop_paths(self._blocks)

    def forward(
        self,
        pixels: Float[Tensor, "b 3 h w"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        keep: Int[Tensor, "b m"] | None = None,
        drop_keys: Int[Tensor, " b"] | None = None,
        needed: NeededPatches = "all",
    ) -> Tokens:
        if keep is not None:
            raise UserError(
                f"{self.architecture.name} cannot leave out patches, which this method needs; "
                "choose a ViT, for example backbone.name=vit_small_patch16_224"
            )
        return self._normed(self._run(pixels, mask, drop_keys, [self.depth - 1]), [self.depth - 1])[0]

    def embedded(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        return _as_tokens(self._embed(pixels, None))

    def layers(self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int]) -> list[Tokens]:
        """Tokens of earlier stages have their own width and grid, and no norm: only the final stage has one."""
        return self._normed(self._run(pixels, None, None, [self.block_index(block) for block in blocks]), blocks)

    def block_outputs(
        self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int], *, drop_keys: Int[Tensor, " b"] | None = None
    ) -> list[Tokens]:
        return self._run(pixels, None, drop_keys, [self.block_index(block) for block in blocks])

    @property
    def level_blocks(self) -> tuple[int, int, int, int]:
        first, second, third, fourth = accumulate(len(stage.blocks) for stage in self.network.layers)
        return first - 1, second - 1, third - 1, fourth - 1

    @property
    def level_widths(self) -> tuple[int, int, int, int]:
        first, second, third, fourth = (stage.blocks[-1].dim for stage in self.network.layers)
        return first, second, third, fourth

    def attention(self, pixels: Float[Tensor, "b 3 h w"], block: int = -1) -> Float[Tensor, "b heads t t"]:
        raise UserError(f"{self.architecture.name} attends within windows only and has no attention map; choose a ViT")

    def fix_masks(self, size: tuple[int, int]) -> None:
        """Compute the attention masks of shifted windows once, for images of this height and width and no others."""
        for number, stage in enumerate(self.network.layers):
            rows, columns = (side // (self.network.patch_embed.patch_size[0] * 2**number) for side in size)
            for block in stage.blocks:
                grid = block.norm1.weight.new_zeros(1, rows, columns, 1)
                block.register_buffer("attn_mask", block.get_attn_mask(grid), persistent=False)
                block.dynamic_mask = False

    @property
    def _blocks(self) -> list[Any]:
        return [block for stage in self.network.layers for block in stage.blocks]

    def _run(
        self,
        pixels: Float[Tensor, "b 3 h w"],
        mask: Bool[Tensor, "b n"] | None,
        drop_keys: Int[Tensor, " b"] | None,
        wanted: list[int],
    ) -> list[Tokens]:
        self.grid_of(pixels)  # raises for sizes that do not divide into patches
        factors = branch_factors(drop_keys, self.depth, self.drop_path, pixels.device)
        outputs = {}
        x, index = self._embed(pixels, mask), 0
        for stage in self.network.layers:
            x = stage.downsample(x)
            for block in stage.blocks:
                x = run_block(block, x, factors[index], self.checkpointing)
                if index in wanted:
                    outputs[index] = _as_tokens(x)
                index += 1
        return [outputs[index] for index in wanted]

    def _normed(self, outputs: list[Tokens], blocks: Sequence[int]) -> list[Tokens]:
        """Outputs of the final stage with its norm; those of earlier stages as they are."""
        return [
            replace(tokens, patches=self.network.norm(tokens.patches))
            if self.block_index(block) >= self.first_block
            else tokens
            for tokens, block in zip(outputs, blocks, strict=True)
        ]

    def _embed(
        self, pixels: Float[Tensor, "b 3 h w"], mask: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b rows columns d"]:
        """Patches as they enter the first stage. A masked token of the final stage masks all patches it covers."""
        x = self.network.patch_embed(pixels)
        if mask is None:
            return x
        assert self.mask_token is not None, "masking needs BackboneConfig(mask_token=True)"
        hidden = sent(mask, pixels.device).view(-1, *self.grid_of(pixels))
        for dim in (1, 2):
            hidden = hidden.repeat_interleave(_SHRINK, dim=dim)
        return torch.where(hidden[..., None], self.mask_token, x)


def _as_tokens(x: Float[Tensor, "b rows columns d"]) -> Tokens:
    patches = x.flatten(1, 2)
    return Tokens(None, patches, registers=patches[:, :0], grid=(x.shape[1], x.shape[2]))


def _arguments(config: BackboneConfig) -> dict[str, Any]:
    """The configured changes as timm arguments; sizes refer to the final stage."""
    _refuse(config)
    arguments: dict[str, Any] = {}
    if config.image_size is not None:
        arguments["img_size"] = config.image_size
    if config.patch_size is not None:
        if config.patch_size % _SHRINK:
            raise UserError(f"backbone.patch_size = {config.patch_size}: a Swin needs a multiple of {_SHRINK}")
        arguments["patch_size"] = config.patch_size // _SHRINK
    if config.dim is not None:
        if config.dim % _SHRINK:
            raise UserError(f"backbone.dim = {config.dim}: a Swin needs a multiple of {_SHRINK}")
        widths = [config.dim // _SHRINK * 2**stage for stage in range(_STAGES)]
        arguments["embed_dim"] = widths[0]
        arguments["num_heads"] = [max(1, width // _HEAD_WIDTH) for width in widths]
    if config.window is not None:
        arguments["window_size"] = config.window
    return config.arguments | arguments | FEATURES_ONLY


def _refuse(config: BackboneConfig) -> None:
    """Raise for settings that have no effect here, instead of ignoring them."""
    unfit = {
        "depth": config.depth is not None,
        "heads": config.heads is not None,
        "mlp_ratio": config.mlp_ratio is not None,
        "class_token": bool(config.class_token),
        "class_position": bool(config.class_position),
        "layer_norm_eps": config.layer_norm_eps is not None,
        "registers": bool(config.registers),
        "positions": config.positions == "sincos",
    }
    for name, given in unfit.items():
        if given:
            raise UserError(
                f"backbone.{name} = {getattr(config, name)!r} does not fit {config.name}; leave it out or choose a ViT"
            )
