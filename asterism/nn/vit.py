"""timm's vision transformers with masks, visible-only tokens, registers and positions for any input size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from timm.models.vision_transformer import (  # type: ignore[attr-defined]
    Attention,
    Block,
    PatchEmbed,
    ResPostBlock,
    VisionTransformer,
)
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, Backbone, BackboneConfig, Pooling
from asterism.nn.needed_outputs import NeededPatches, can_skip_outputs, first_outputs, placed_rows, rows_of_outputs
from asterism.nn.positions import Grid, resample, sincos_table
from asterism.nn.stochastic_depth import branch_factors, install_drop_paths, run_block, run_part
from asterism.nn.timm_models import create_network, unsupported
from asterism.ops.host import sent
from asterism.types import Tokens

# No classifier and no pooling, so that the final norm is the last layer; any input size.
FEATURES_ONLY: dict[str, Any] = {"num_classes": 0, "global_pool": "", "dynamic_img_size": True}


def build(config: BackboneConfig) -> ViT:
    """A vision transformer with fresh weights."""
    architecture = Architecture(
        config.name, arguments(config), config.resampling, config.layer_norm_eps, positions=config.positions
    )
    return ViT(
        architecture,
        drop_path=config.drop_path,
        mask_token=config.mask_token,
        checkpointing=config.checkpointing,
    )


class ViT(Backbone):
    """A timm `VisionTransformer` as a `Backbone`; without mask, keep and keys it computes `forward_features`.

    Networks of other timm classes override `_is_known` and `context`, what every block takes besides the tokens.
    """

    takes_masks: ClassVar[bool] = True
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
        network = _create(architecture, self._is_known)
        self.architecture = architecture
        self.network = network
        self.dim = network.embed_dim
        self.patch_size = network.patch_embed.patch_size[0]
        self.image_size = network.patch_embed.img_size[0]
        self.depth = len(network.blocks)
        self.has_cls = network.cls_token is not None
        self.registers = 0 if network.reg_token is None else network.reg_token.shape[1]
        self.pooling = _pooling(architecture, network)
        self.drop_path = drop_path
        self.checkpointing = checkpointing
        self.mask_token = nn.Parameter(torch.zeros(1, self.dim)) if mask_token else None
        if drop_path:
            install_drop_paths(network.blocks)

    def forward(
        self,
        pixels: Float[Tensor, "b 3 h w"],
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        keep: Int[Tensor, "b m"] | None = None,
        drop_keys: Int[Tensor, " b"] | None = None,
        needed: NeededPatches = "all",
    ) -> Tokens:
        grid = self.grid_of(pixels)
        keep = None if keep is None else sent(keep, pixels.device)
        x, context = self._embed(pixels, mask, keep), self.context(grid, keep)
        factors = branch_factors(drop_keys, self.depth, self.drop_path, pixels.device)
        last = self.network.blocks[-1]
        skips = needed != "all" if isinstance(needed, str) else True
        skips = skips and self.has_cls and not context[-1] and can_skip_outputs(last)
        whole = self.depth - 1 if skips else self.depth
        for index, block in enumerate(self.network.blocks[:whole]):
            x = run_block(block, x, factors[index], self.checkpointing, context[index])
        x = self._needed(last, x, factors[-1], needed) if skips else self.network.norm(x)
        return self.tokens(x, grid)

    def _needed(
        self, block: nn.Module, x: Float[Tensor, "b t d"], factors: Float[Tensor, "2 b"] | None, needed: NeededPatches
    ) -> Float[Tensor, "b m d"]:
        """The last block and the final norm for class token, registers and needed patches alone."""
        prefix = 1 + self.registers
        if isinstance(needed, str):
            return self.network.norm(run_part(first_outputs, self.checkpointing, block, x, factors, prefix))
        rows = sent(F.pad(needed, (prefix, 0), value=True).flatten().nonzero()[:, 0], x.device)
        values = self.network.norm(run_part(rows_of_outputs, self.checkpointing, block, x, factors, rows))
        return placed_rows(rows, values, x.shape)

    def embedded(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        return self.tokens(self._embed(pixels, None, None), self.grid_of(pixels))

    def layers(self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int]) -> list[Tokens]:
        outputs = self._outputs(pixels, blocks, None)
        return [self.tokens(self.network.norm(x), self.grid_of(pixels)) for x in outputs]

    def block_outputs(
        self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int], *, drop_keys: Int[Tensor, " b"] | None = None
    ) -> list[Tokens]:
        return [self.tokens(x, self.grid_of(pixels)) for x in self._outputs(pixels, blocks, drop_keys)]

    @property
    def level_blocks(self) -> tuple[int, int, int, int]:
        first, second, third = (max(1, round(self.depth * share)) - 1 for share in (1 / 3, 1 / 2, 2 / 3))
        return first, second, third, self.depth - 1

    @property
    def level_widths(self) -> tuple[int, int, int, int]:
        return self.dim, self.dim, self.dim, self.dim

    def attention(self, pixels: Float[Tensor, "b 3 h w"], block: int = -1) -> Float[Tensor, "b heads t t"]:
        attention = self.network.blocks[self.block_index(block)].attn
        weights: list[Tensor] = []
        hook = attention.attn_drop.register_forward_pre_hook(lambda _, arguments: weights.append(arguments[0]))
        fused, attention.fused_attn = attention.fused_attn, False  # a fused attention never holds its weights
        try:
            self.layers(pixels, [block])
        finally:
            attention.fused_attn = fused
            hook.remove()
        return weights[0]

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        if self.pooling == "attention":
            return self.network.attn_pool(self._pooled_by_attention(tokens))
        vector = tokens.patches.mean(dim=1) if self.pooling == "mean" or tokens.cls is None else tokens.cls
        return self.network.fc_norm(vector)

    @property
    def pooled_patches(self) -> Literal["all", "none"]:
        return "none" if self.pooling == "class" else "all"

    def _pooled_by_attention(self, tokens: Tokens) -> Float[Tensor, "b t d"]:
        return tokens.patches

    def context(self, grid: Grid, keep: Int[Tensor, "b m"] | None) -> Sequence[tuple[Float[Tensor, ...] | None, ...]]:
        """For every block, what it takes besides the tokens."""
        return [()] * self.depth

    @staticmethod
    def _is_known(network: Any) -> bool:
        """Whether every part of the network is known: the adapter runs the parts itself."""
        return (
            type(network) is VisionTransformer
            and type(network.patch_embed) is PatchEmbed
            and all(type(block) in (Block, ResPostBlock) and type(block.attn) is Attention for block in network.blocks)
        )

    def _embed(
        self, pixels: Float[Tensor, "b 3 h w"], mask: Bool[Tensor, "b n"] | None, keep: Int[Tensor, "b m"] | None
    ) -> Float[Tensor, "b t d"]:
        """Tokens as they enter the first block: prefix (class token, registers), then patches with their positions."""
        grid = self.grid_of(pixels)
        patches = self._patches(pixels) if keep is None else self._kept_patches(pixels, keep)
        if mask is not None:
            assert keep is None, "mask and keep exclude each other"
            assert self.mask_token is not None, "masking needs BackboneConfig(mask_token=True)"
            patches = torch.where(sent(mask, pixels.device)[..., None], self.mask_token, patches)
        prefix, positions = self.prefix_and_positions(grid)
        if positions is not None:
            patches = patches + (positions if keep is None else positions[0][keep])
        return self.network.norm_pre(torch.cat([prefix.expand(len(pixels), -1, -1), patches], dim=1))

    def _outputs(
        self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int], drop_keys: Int[Tensor, " b"] | None
    ) -> list[Float[Tensor, "b t d"]]:
        wanted = [self.block_index(block) for block in blocks]
        x, outputs = self._embed(pixels, None, None), {}
        context = self.context(self.grid_of(pixels), None)
        factors = branch_factors(drop_keys, self.depth, self.drop_path, pixels.device)
        for index, block in enumerate(self.network.blocks[: max(wanted, default=-1) + 1]):
            x = run_block(block, x, factors[index], self.checkpointing, context[index])
            if index in wanted:
                outputs[index] = x
        return [outputs[index] for index in wanted]

    def _patches(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b n d"]:
        embed = self.network.patch_embed
        return embed.norm(embed.proj(pixels).flatten(2).transpose(1, 2))

    def _kept_patches(self, pixels: Float[Tensor, "b 3 h w"], keep: Int[Tensor, "b m"]) -> Float[Tensor, "b m d"]:
        """Embed only the kept patches: pixels are gathered first, then mapped linearly by the convolution's kernel."""
        embed = self.network.patch_embed
        (rows, columns), side = self.grid_of(pixels), self.patch_size
        cells = pixels.reshape(len(pixels), 3, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
        image = torch.arange(len(pixels), device=pixels.device)[:, None]
        visible = cells[image, keep // columns, keep % columns].flatten(2)
        return embed.norm(F.linear(visible, embed.proj.weight.flatten(1), embed.proj.bias))

    def prefix_and_positions(self, grid: Grid) -> tuple[Float[Tensor, "1 p d"], Float[Tensor, "1 n d"] | None]:
        """Class token and registers, with their rows of the position table added if any, and the patches' rows."""
        network = self.network
        parts = [token for token in (network.cls_token, network.reg_token) if token is not None]
        prefix = torch.cat(parts, dim=1) if parts else network.patch_embed.proj.weight.new_zeros(1, 0, self.dim)
        if network.pos_embed is None:
            return prefix, None
        rows = 0 if network.no_embed_class else prefix.shape[1]
        if rows:
            first = int(self.has_cls)
            cls_row, register_rows = network.pos_embed[:, :first], network.pos_embed[:, first:rows]
            prefix = prefix + torch.cat([cls_row, register_rows.detach()], dim=1)  # registers do not learn positions
        own_grid = network.patch_embed.grid_size
        return prefix, resample(network.pos_embed[:, rows:], own_grid, grid, self.architecture.resampling)

    def tokens(self, x: Float[Tensor, "b t d"], grid: Grid) -> Tokens:
        first = int(self.has_cls)
        return Tokens(
            cls=x[:, 0] if self.has_cls else None,
            registers=x[:, first : first + self.registers],
            patches=x[:, first + self.registers :],
            grid=grid,
        )


def arguments(config: BackboneConfig) -> dict[str, Any]:
    """The configured changes as timm arguments."""
    if config.window is not None:
        raise UserError(
            f"backbone.window = {config.window}: {config.name} has no windows; leave it out or choose a Swin"
        )
    changes = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.heads or _default_heads(config.dim),
        "mlp_ratio": config.mlp_ratio,
        "class_token": config.class_token,
        "reg_tokens": config.registers,
        "no_embed_class": _no_embed_class(config),
    }
    return config.arguments | {name: value for name, value in changes.items() if value is not None} | FEATURES_ONLY


def _no_embed_class(config: BackboneConfig) -> bool | None:
    """Whether the position table has rows for patches only; None: as in the named model."""
    if config.class_position is None:
        return True if config.registers else None
    return not config.class_position


def _default_heads(dim: int | None) -> int | None:
    if dim is None:
        return None
    width = next((width for width in (64, 32) if dim % width == 0), None)
    if width is None:
        raise UserError(f"backbone.dim = {dim} is not a multiple of 32; give backbone.heads, a divisor of {dim}")
    return dim // width


def _pooling(architecture: Architecture, network: Any) -> Pooling:
    has_attention, has_cls = network.attn_pool is not None, network.cls_token is not None
    own: Pooling = "attention" if has_attention else "class" if has_cls else "mean"
    chosen = architecture.pooling or own
    if (chosen == "class" and not has_cls) or (chosen == "attention" and not has_attention):
        part = "class token" if chosen == "class" else "attention pooling"
        raise UserError(f"pooling = {chosen}, but {architecture.name} has no {part} here; choose pooling={own}")
    return chosen


def _create(architecture: Architecture, is_known: Callable[[Any], bool]) -> Any:
    arguments = dict(architecture.arguments)
    _check_sizes(arguments)
    network = create_network(architecture.name, arguments)
    if not is_known(network):
        raise unsupported(architecture.name)
    _check_image_size(network)
    _draw_tokens(network)
    if architecture.positions == "sincos":
        _fix_positions(network)
    if architecture.layer_norm_eps is not None:
        for module in network.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = architecture.layer_norm_eps
    return network


def _check_sizes(arguments: dict[str, Any]) -> None:
    dim, heads = arguments.get("embed_dim"), arguments.get("num_heads")
    if dim and heads and dim % heads:
        raise UserError(f"backbone.dim = {dim} is not divisible by backbone.heads = {heads}")


def _check_image_size(network: Any) -> None:
    (height, width), side = network.patch_embed.img_size, network.patch_embed.patch_size[0]
    if height % side or width % side:
        raise UserError(f"backbone.image_size = {height} is not a multiple of the patch size {side}")


@torch.no_grad()
def _draw_tokens(network: Any) -> None:
    """Draw class token and registers; timm has drawn the rest: truncated normals of std .02, zero biases.

    Registers start far apart, as N(0, 1)/√d: latent queries that start close together tend to stay so.
    """
    if network.cls_token is not None:
        nn.init.trunc_normal_(network.cls_token, std=0.02)
    if network.reg_token is not None:
        nn.init.normal_(network.reg_token, std=network.embed_dim**-0.5)
        if network.pos_embed is not None and not network.no_embed_class:
            network.pos_embed[:, int(network.cls_token is not None) : network.num_prefix_tokens] = 0


@torch.no_grad()
def _fix_positions(network: Any) -> None:
    """Set fixed sine-cosine positions; the rows of the class token and registers are zero."""
    table = sincos_table(network.embed_dim, network.patch_embed.grid_size)
    network.pos_embed.zero_()
    network.pos_embed[0, -len(table) :] = table
    network.pos_embed.requires_grad_(False)
