"""Settings with which STELLAR cannot run, each refused with the setting to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asterism.errors import UserError
from asterism.nn.backbone import BackboneConfig
from asterism.ops import collectives
from asterism.ops.masking import keep_count

if TYPE_CHECKING:
    from asterism.methods.stellar import Stellar, StellarConfig


def refuse_other_registers(config: StellarConfig, backbone: BackboneConfig) -> None:
    """Called before the backbone is built: its registers are the concepts."""
    if backbone.registers not in (None, 0, config.tokens):
        raise UserError(
            f"backbone.registers = {backbone.registers}, but in STELLAR the registers are the concepts: leave it out, "
            f"or set it to method.tokens = {config.tokens}"
        )


def refuse_what_cannot_work(method: Stellar) -> None:
    """Called once all parts are built."""
    _refuse_backbone(method)
    _refuse_terms(method)
    _refuse_sizes(method)
    _refuse_masks(method)


def refuse_a_single_image(images: int) -> None:
    """Called in training: balanced targets divide prototypes among several images."""
    everywhere = images * collectives.world_size()
    if everywhere < 2:
        raise UserError(
            f"a batch of {everywhere} image is too small for balanced targets, which divide prototypes among all "
            "images of all devices; raise trainer.batch_size, or lower trainer.accumulate, which splits the batch"
        )


def _refuse_backbone(method: Stellar) -> None:
    if not method.backbone.takes_masks:
        raise UserError("stellar needs a backbone that can skip patches: choose a timm vit_*")
    if method.config.class_vocabulary is not None and not method.backbone.has_cls:
        raise UserError(
            "method.class_vocabulary is for class tokens, which the backbone lacks; set it to null, or set "
            "backbone.class_token=true"
        )


def _refuse_terms(method: Stellar) -> None:
    config, weights = method.config, method.config.weights
    learns = config.reconstruction is not None or method.needs.vocabulary or method.needs.class_vocabulary
    if not learns and not weights.koleo and not (weights.koleo_masked and method.needs.masked_views):
        raise UserError("every term of the loss is off; give method.reconstruction or some of method.weights")
    if config.masked_views == 0 and weights.align:
        raise UserError(
            "method.masked_views = 0 leaves nothing to align; raise it, or switch the term off with "
            "method.weights.align=0"
        )
    if config.tokens < 2 and (weights.koleo or weights.koleo_masked):
        raise UserError(
            "KoLeo needs at least two concepts; with a single one, set method.weights.koleo=0 and "
            "method.weights.koleo_masked=0"
        )


def _refuse_sizes(method: Stellar) -> None:
    config, patch = method.config, method.backbone.patch_size
    if method.global_size % patch:
        raise UserError(f"method.global_size = {method.global_size} is not a multiple of the patch size {patch}")
    if config.local_size is not None and config.local_size % patch:
        raise UserError(f"method.local_size = {config.local_size} is not a multiple of the patch size {patch}")
    patches = method.grid[0] * method.grid[1]
    if config.tokens > patches:
        raise UserError(
            f"method.tokens = {config.tokens} concepts for {patches} patches; use fewer, or smaller patches"
        )
    if config.tokens > config.vocabulary.prototypes:
        raise UserError(
            f"method.tokens = {config.tokens} is more than method.vocabulary.prototypes = "
            f"{config.vocabulary.prototypes}: balanced targets could not separate the concepts of one image; "
            "lower the first, or raise the second"
        )


def _refuse_masks(method: Stellar) -> None:
    config, patches = method.config, method.grid[0] * method.grid[1]
    ratios = {"method.mask_ratio": config.mask_ratio}
    if config.warmup is not None:
        ratios["method.warmup.mask_ratio"] = config.warmup.mask_ratio
        if method.needs.masked_views < 2:
            raise UserError(
                f"method.warmup lets a teacher see the second masked view, but {method.needs.masked_views} are in use; "
                "raise method.masked_views, and keep a term that uses them (align, cls_masked or koleo_masked)"
            )
    for name, ratio in ratios.items():
        if keep_count(patches, ratio) == 0:
            raise UserError(f"{name} = {ratio} leaves none of {patches} patches; lower it")
