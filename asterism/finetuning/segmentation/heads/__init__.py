"""Heads of segmentation by name: each file has the settings of one head and its module."""

from __future__ import annotations

from collections.abc import Mapping

from asterism.finetuning.segmentation.heads.base import SegmentHeadConfig
from asterism.finetuning.segmentation.heads.fpn import FpnConfig
from asterism.finetuning.segmentation.heads.linear import LinearConfig
from asterism.finetuning.segmentation.heads.linear4 import Linear4Config
from asterism.finetuning.segmentation.heads.mask_transformer import MaskTransformerConfig
from asterism.finetuning.segmentation.heads.upernet import UperNetConfig

HEADS: Mapping[str, type[SegmentHeadConfig]] = {
    "linear": LinearConfig,
    "linear4": Linear4Config,
    "upernet": UperNetConfig,
    "fpn": FpnConfig,
    "mask-transformer": MaskTransformerConfig,
}
