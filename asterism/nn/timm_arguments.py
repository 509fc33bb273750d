"""The arguments of `timm.create_model` that a file may set.

Weights files and recipes come from anywhere, and timm's other arguments can name addresses to download from or files to
open.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from asterism.config import Config
from asterism.ranges import Count, CountFromZero, Few, NonNegative, Pixels, Positive, ShareBelowOne

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu"]
Depth = Annotated[int, Field(ge=1, le=200)]  # blocks; the deepest published networks have 64


class TimmArguments(Config):
    """Every argument that our exports and recipes use: sizes and switches. `None` is timm's own value."""

    img_size: Pixels | None = None
    patch_size: Pixels | None = None
    embed_dim: Count | None = None
    depth: Depth | None = None
    num_heads: Few | tuple[Few, ...] | None = None
    mlp_ratio: Positive | None = None
    window_size: Few | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None
    init_values: NonNegative | None = None
    class_token: bool | None = None
    reg_tokens: CountFromZero | None = None
    num_reg_tokens: CountFromZero | None = None
    no_embed_class: bool | None = None
    num_classes: Literal[0] = 0
    global_pool: Literal["", "map", "avg", "token"] = ""
    dynamic_img_size: bool | None = None
    strict_img_size: bool | None = None
    drop_path_rate: ShareBelowOne | None = None
    pre_norm: bool | None = None
    act_layer: Activation | None = None
    swiglu_mlp: bool | None = None
    swiglu_align_to: Few | None = None
    rope_temperature: Positive | None = None
