"""Maps at several resolutions for torchvision's detection heads, from the tokens of a backbone.

    levels  the tokens of four blocks (a ViT's 3, 5, 7 and 11 of 12, a Swin's stages), then a feature pyramid network
    simple  ViTDet's pyramid: the tokens of the last block at four resolutions, without connections between them

A last map, of half the resolution of the coarsest one, serves the region proposals.
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from asterism.errors import UserError
from asterism.extras.detection.window_attention import check_windows_fit, global_blocks, windowed_tokens
from asterism.nn.backbone import Backbone
from asterism.nn.pyramid import build_pyramid, token_map
from asterism.ops.precision import at_least_float32

PyramidName = Literal["levels", "simple"]
LEVELS = ("0", "1", "2", "3")  # as torchvision names the maps that regions are cut from
_SCALES = (4.0, 2.0, 1.0, 0.5)  # of the simple pyramid, relative to the patch grid


class PyramidFeatures(nn.Module):
    """The maps of images, all with `channels` channels. The backbone is passed in, so that it is registered once."""

    def __init__(
        self, backbone: Backbone, pyramid: PyramidName, channels: int, window: int | None, whole_blocks: int
    ) -> None:
        super().__init__()
        self.window, self._whole = window, global_blocks(backbone.depth, whole_blocks)
        self.simple: SimplePyramid | None = None
        if pyramid == "simple":
            if backbone.first_block:
                raise UserError(
                    f"task.head.pyramid = simple is for networks with one resolution, and {backbone.architecture.name} "
                    "has several; choose levels"
                )
            self.simple = SimplePyramid(backbone.dim, channels)
            self.strides = tuple(max(1, round(backbone.patch_size / scale)) for scale in _SCALES)
        else:
            self.pyramid = build_pyramid(backbone)
            self.network = FeaturePyramidNetwork(list(self.pyramid.widths), channels, LastLevelMaxPool())
            self.strides = self.pyramid.strides
        if window is not None:
            if pyramid != "simple":
                raise UserError("task.head.window is for task.head.pyramid=simple; choose both or neither")
            check_windows_fit(backbone)

    @property
    def stride(self) -> int:
        """Pixels per cell of the coarsest map that regions are cut from."""
        return self.strides[-1]

    @property
    def cells(self) -> tuple[float, ...]:
        """Exact pixels per cell of these maps: a patch of 14 pixels has cells of 3.5 on the finest."""
        return tuple(self.stride / 2**finer for finer in reversed(range(len(LEVELS))))

    def forward(
        self, backbone: Backbone, images: Float[Tensor, "b 3 h w"], drop_keys: Int[Tensor, " b"] | None
    ) -> dict[str, Float[Tensor, "b c _ _"]]:
        if self.simple is None:
            tokens = backbone.block_outputs(images, backbone.level_blocks, drop_keys=drop_keys)
            maps = dict(zip(LEVELS, self.pyramid(tokens), strict=True))
            return self.network(maps)
        if self.window is not None:
            last = windowed_tokens(backbone, images, self.window, self._whole, drop_keys)
        else:
            (last,) = backbone.block_outputs(images, [backbone.depth - 1], drop_keys=drop_keys)
        found = dict(zip(LEVELS, self.simple(token_map(last)), strict=True))
        return found | {"pool": F.max_pool2d(found[LEVELS[-1]], 1, 2)}

    def freeze_unused(self, backbone: Backbone) -> None:
        """Parameters of the backbone that no map depends on are not trained: final norm, pooling, unused tokens."""
        network = backbone.network
        for name in ("norm", "fc_norm", "attn_pool"):
            part = getattr(network, name, None)
            if isinstance(part, nn.Module):
                part.requires_grad_(False)
        if self.window is not None:
            for name in ("cls_token", "reg_token"):
                token = getattr(network, name, None)
                if isinstance(token, nn.Parameter):
                    token.requires_grad_(False)


class SimplePyramid(nn.Module):
    """ViTDet (Li et al., 2022): transposed convolutions or max pooling from the last map, then 1×1 and 3×3
    convolutions with layer norms over channels."""

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList()
        for scale in _SCALES:
            layers: list[nn.Module] = []
            width = dim
            if scale == 4.0:
                layers += [nn.ConvTranspose2d(dim, dim // 2, 2, 2), _ChannelNorm(dim // 2), nn.GELU()]
                layers += [nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2)]
                width = dim // 4
            elif scale == 2.0:
                layers += [nn.ConvTranspose2d(dim, dim // 2, 2, 2)]
                width = dim // 2
            elif scale == 0.5:
                layers += [nn.MaxPool2d(2, 2, ceil_mode=True)]
            layers += [nn.Conv2d(width, channels, 1, bias=False), _ChannelNorm(channels)]
            layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), _ChannelNorm(channels)]
            self.levels.append(nn.Sequential(*layers))

    def forward(self, last: Float[Tensor, "b d rows columns"]) -> list[Float[Tensor, "b c _ _"]]:
        return [level(last) for level in self.levels]


class _ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of every cell of a map."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def as_float32(maps: dict[str, Tensor]) -> dict[str, Tensor]:
    """Coordinates of boxes need more than the 8 bits of bfloat16, and they are computed in the type of the maps."""
    return {name: at_least_float32(each) for name, each in maps.items()}
