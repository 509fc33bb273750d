"""Settings with which FLSL cannot run, and those its authors report to collapse."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from asterism.errors import UserError
from asterism.methods.parts.view_sizes import check_view_size
from asterism.nn.backbone import BackboneConfig

if TYPE_CHECKING:
    from asterism.methods.flsl import FlslConfig


def without_class_token(backbone: BackboneConfig) -> BackboneConfig:
    """The same network without a class token, which FLSL's objective does not train."""
    if backbone.class_token:
        raise UserError(
            "backbone.class_token = true: FLSL's objective does not train a class token; leave the setting out "
            "or make it false"
        )
    return backbone.model_copy(update={"class_token": False})


def check_windows(config: FlslConfig, view_size: int, local_size: int, patch_size: int) -> None:
    """Views must divide into patches, and at least one window must fit each of them."""
    views = [("view_size", view_size, "window", config.window)]
    if config.local_views:
        views.append(("local_size", local_size, "local_window", config.local_window))
    for size_name, size, window_name, window in views:
        check_view_size(size_name, size, patch_size)
        side = size // patch_size
        if window > side:
            raise UserError(
                f"method.{window_name} = {window} does not fit a view of {size} pixels, which has {side}×{side} "
                f"patches; choose 1 … {side}"
            )


def warn_of_collapse(config: FlslConfig) -> None:
    reasons = []
    if config.inter_scale < config.intra_scale:
        reasons.append(
            f"method.inter_scale = {config.inter_scale} is below method.intra_scale = {config.intra_scale}: "
            "queries attend more broadly over the teacher's view than over their own"
        )
    if config.intra_weight == 0:
        reasons.append("method.intra_weight = 0 leaves out the clustering within a view (table 5)")
    if config.crops == "symmetric":
        reasons.append("method.crops = symmetric gives student and teacher the same crops (appendix E.3)")
    for reason in reasons:
        warnings.warn(f"{reason}; the authors of FLSL report that this collapses", UserWarning, stacklevel=3)
