"""Settings of views that methods share: colours, and two large crops with several small ones (multi-crop)."""

from __future__ import annotations

from jaxtyping import Bool
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.base import MethodConfig
from asterism.nn.backbone import Backbone
from asterism.ops.block_masks import MaskConfig, draw_masks
from asterism.ops.random import fold_each
from asterism.ranges import AreaRange, FewFromZero, Pixels, PositiveRange, Share
from asterism.types import Batch, ColorJitter, Progress, ViewSpec

GLOBAL_VIEWS = 2


class ColorsConfig(MethodConfig):
    """Colours that differ between views are uninformative, so the network learns to rely on other cues."""

    jitter: ColorJitter | None = ColorJitter()  # None if colours are informative, or images are grey
    grayscale: Share = 0.2  # probability
    blur_sigma: PositiveRange = (0.1, 2.0)  # in pixels of the view: lower it for views much below 224

    def colored(self, view: ViewSpec) -> ViewSpec:
        changes = {"jitter": self.jitter, "grayscale": self.grayscale, "blur_sigma": self.blur_sigma}
        return view.model_copy(update=changes)


class MultiCropConfig(ColorsConfig):
    """Sizes are in pixels, scales are shares of the image's area."""

    global_size: Pixels | None = None  # None: the backbone's image size
    global_scale: AreaRange = (0.25, 1.0)
    local_views: FewFromZero = 10
    local_size: Pixels | None = None  # None: 3/7 of the global size (96 of 224), in whole patches
    local_scale: AreaRange = (0.05, 0.25)
    solarize: Share = 0.2  # probability, of the second large view


def usual_local_size(global_size: int, patch_size: int) -> int:
    """3/7 of a large view (96 of 224), in whole patches."""
    return max(patch_size, round(global_size * 3 / 7 / patch_size) * patch_size)


def multi_crop_views(config: MultiCropConfig, backbone: Backbone) -> tuple[ViewSpec, ...]:
    """The two large views, of which the second is rarely blurred and sometimes solarised, then the small ones."""
    patch = backbone.patch_size
    large = config.global_size or backbone.image_size
    small = config.local_size or usual_local_size(large, patch)
    common = config.colored(ViewSpec(size=large, scale=config.global_scale))
    first = common.model_copy(update={"blur": 1.0})
    second = common.model_copy(update={"blur": 0.1, "solarize": config.solarize})
    local = common.model_copy(update={"size": small, "scale": config.local_scale, "blur": 0.5})
    check_view_size("global_size", large, patch)
    check_view_size("local_size", small, patch)
    return (first, second, *[local] * config.local_views)


def draw_view_masks(
    config: MaskConfig, batch: Batch, progress: Progress, backbone: Backbone, use: int
) -> list[Bool[Tensor, "b n"]]:
    """For each large view, the patches masked for the student; `use` separates this draw from others."""
    return [
        draw_masks(config, fold_each(batch.keys, use, number), backbone.grid_of(view.pixels), progress.epoch)
        for number, view in enumerate(batch.views[:GLOBAL_VIEWS])
    ]


def check_view_size(setting: str, size: int, patch_size: int) -> None:
    if size % patch_size:
        raise UserError(
            f"views of {size} pixels do not divide into patches of {patch_size}; set method.{setting} to a multiple of "
            f"{patch_size}"
        )
