"""Our networks as native models of the transformers library: its configuration and its names for our tensors.

Each network becomes the class that computes the same, so that `AutoModel` opens it without any code of ours:

- a ViT with a class token or registers: DINOv2 (with registers), which resamples positions for any image size;
- a ViT with DINOv3's rotary positions: DINOv3;
- a ViT with patches alone: the vision tower of SigLIP, without its pooling head;
- a Swin: Swin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from timm.layers import GluMlp, LayerScale, Mlp, SwiGLU  # type: ignore[attr-defined]
from timm.models.eva import EvaAttention, EvaBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.nn.backbone import Backbone
from asterism.nn.rope_vit import RopeViT
from asterism.nn.swin import Swin
from asterism.nn.vit import ViT


@dataclass(frozen=True)
class NativeModel:
    """A model of transformers: `config.json` and tensors."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    any_size: bool  # equal to ours at every image size
    notes: tuple[str, ...] = ()


def native_model(backbone: Backbone) -> NativeModel:
    """The native class of transformers that computes the same; raises if there is none."""
    if isinstance(backbone, Swin):
        return _swin(backbone)
    if isinstance(backbone, RopeViT):
        return _dinov3(backbone)
    if type(backbone) is not ViT:
        raise _inexpressible(backbone, f"the form of a {type(backbone).__name__}")
    _check_parts(backbone)
    with torch.no_grad():
        return _dinov2(backbone) if backbone.has_cls or backbone.registers else _siglip(backbone)


def with_classifier(
    native: NativeModel, weight: Float[Tensor, "c d"], bias: Float[Tensor, " c"], takes_mean: bool, names: Sequence[str]
) -> NativeModel | None:
    """The class of transformers with a linear classifier on top; None if there is none that computes the same.

    DINOv2's classifier takes the first token and the mean patch together; the part that is not used gets zeros.
    takes_mean: the weights are those of the mean patch.
    """
    model = str(native.config["architectures"][0])
    prefixes = {"Dinov2Model": "dinov2", "Dinov2WithRegistersModel": "dinov2_with_registers", "SwinModel": "swin"}
    if model not in prefixes:
        return None
    if model != "SwinModel":
        nothing = torch.zeros_like(weight)
        weight = torch.cat([nothing, weight] if takes_mean else [weight, nothing], dim=1)
    config = {
        **native.config,
        "architectures": [model.removesuffix("Model") + "ForImageClassification"],
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    tensors = {f"{prefixes[model]}.{name}": tensor for name, tensor in native.tensors.items()}
    return replace(native, config=config, tensors=tensors | {"classifier.weight": weight, "classifier.bias": bias})


def _check_parts(vit: ViT) -> None:
    """Raise for a part that no class of transformers has in this combination."""
    network = vit.network
    unknown = {
        "a norm before its blocks": not isinstance(network.norm_pre, nn.Identity),
        "a norm in its patch embedding": not isinstance(network.patch_embed.norm, nn.Identity),
        "no position table": network.pos_embed is None,
        "a pooling with weights of its own": _has_own_pooling(network),
        "norms after its branches": any(type(block) is not Block for block in network.blocks),
        "norms of queries and keys": any(not isinstance(b.attn.q_norm, nn.Identity) for b in network.blocks),
        "norms inside attention or MLP": any(_has_inner_norm(block) for block in network.blocks),
        "an MLP of an unknown kind": any(not _is_known_mlp(block.mlp) for block in network.blocks),
        "layer norms of several epsilons": len({m.eps for m in network.modules() if isinstance(m, nn.LayerNorm)}) != 1,
    }
    for part, present in unknown.items():
        if present:
            raise _inexpressible(vit, part)


def _has_inner_norm(block: Any) -> bool:
    return any(not isinstance(getattr(part, "norm", nn.Identity()), nn.Identity) for part in (block.attn, block.mlp))


def _is_known_mlp(mlp: Any) -> bool:
    if type(mlp) is Mlp:
        return isinstance(mlp.act, nn.GELU) and mlp.act.approximate == "none"
    return type(mlp) is GluMlp and isinstance(mlp.act, nn.SiLU) and not mlp.gate_last


def _inexpressible(backbone: Backbone, part: str) -> UserError:
    return UserError(
        f"{backbone.architecture.name} has {part}, which no native class of transformers computes; use --to timm, onnx "
        "or torchscript"
    )


def _dinov2(vit: ViT) -> NativeModel:
    """DINOv2: [first token, registers, patches]. The first register takes the place of a missing class token."""
    network, resampling = vit.network, vit.architecture.resampling
    prefix, patches = vit.prefix_and_positions(network.patch_embed.grid_size)
    assert patches is not None
    with_registers = prefix.shape[1] > 1 or resampling == "antialiased"
    gated = type(network.blocks[0].mlp) is GluMlp
    hidden = network.blocks[0].mlp.fc2.in_features
    ratio, padded = _integer_ratio(hidden, vit.dim, gated)
    config = {
        "architectures": ["Dinov2WithRegistersModel" if with_registers else "Dinov2Model"],
        "model_type": "dinov2_with_registers" if with_registers else "dinov2",
        **_sizes(vit),
        "mlp_ratio": ratio,
        "qkv_bias": network.blocks[0].attn.qkv.bias is not None,
        "use_swiglu_ffn": gated,
        "layerscale_value": 1.0,
        "drop_path_rate": 0.0,
    }
    tensors = {
        "embeddings.cls_token": prefix[:, :1],  # with its position, so the table has zeros for it
        "embeddings.mask_token": prefix.new_zeros(1, vit.dim),
        "embeddings.position_embeddings": F.pad(patches, (0, 0, 1, 0)),
        **_module("embeddings.patch_embeddings.projection", network.patch_embed.proj),
        **_module("layernorm", network.norm),
    }
    if with_registers:
        config["num_register_tokens"] = prefix.shape[1] - 1
        tensors["embeddings.register_tokens"] = prefix[:, 1:]
    for number, block in enumerate(network.blocks):
        tensors |= {f"encoder.layer.{number}.{name}": t for name, t in _dinov2_block(block, padded).items()}
    any_size = resampling == ("antialiased" if with_registers else "plain")
    notes = () if any_size else (_only_own_size(vit, config["architectures"][0]),)
    return NativeModel(config, tensors, any_size, notes)


def _integer_ratio(hidden: int, dim: int, gated: bool) -> tuple[int, int]:
    """DINOv2's `mlp_ratio`, an integer, and the width it gives: the smallest that holds `hidden` channels.

    Its gated MLP has two thirds of dim · ratio channels, rounded up to a multiple of 8.
    """
    for ratio in range(1, hidden + 2):
        width = (int(dim * ratio * 2 / 3) + 7) // 8 * 8 if gated else dim * ratio
        if width >= hidden:
            return ratio, width
    raise AssertionError(f"no ratio gives {hidden} channels")


def _dinov2_block(block: Any, padded: int) -> dict[str, Tensor]:
    scales = {f"layer_scale{i}.lambda1": _scale(block, f"ls{i}") for i in (1, 2)}
    names = ("weights_in", "weights_out") if type(block.mlp) is GluMlp else ("fc1", "fc2")
    return {
        **_module("norm1", block.norm1),
        **_split("attention.attention", block.attn.qkv, ("query", "key", "value")),
        **_module("attention.output.dense", block.attn.proj),
        **_module("norm2", block.norm2),
        **{f"mlp.{name}": tensor for name, tensor in _padded_mlp(block.mlp, padded, names).items()},
        **scales,
    }


def _padded_mlp(mlp: Any, width: int, names: tuple[str, str]) -> dict[str, Tensor]:
    """An MLP of at least its own width; added channels are zero and contribute nothing: GELU(0) = SiLU(0) = 0."""
    parts = 2 if type(mlp) is GluMlp else 1  # gate and value, one after the other
    extra = width - mlp.fc2.in_features
    weights = [F.pad(part, (0, 0, 0, extra)) for part in mlp.fc1.weight.chunk(parts)]
    first, last = names
    tensors = {f"{first}.weight": torch.cat(weights), f"{last}.weight": F.pad(mlp.fc2.weight, (0, extra))}
    bias = mlp.fc1.weight.new_zeros(mlp.fc1.out_features) if mlp.fc1.bias is None else mlp.fc1.bias
    tensors[f"{first}.bias"] = torch.cat([F.pad(part, (0, extra)) for part in bias.chunk(parts)])
    tensors[f"{last}.bias"] = mlp.fc2.weight.new_zeros(mlp.fc2.out_features) if mlp.fc2.bias is None else mlp.fc2.bias
    return tensors


def _siglip(vit: ViT) -> NativeModel:
    """SigLIP's vision tower: patches alone. It has no layer scale, which the layer before it can absorb."""
    network = vit.network
    if type(network.blocks[0].mlp) is GluMlp:
        raise _inexpressible(vit, "a gated MLP and no class token")
    _, patches = vit.prefix_and_positions(network.patch_embed.grid_size)
    assert patches is not None
    config = {
        "architectures": ["SiglipVisionModel"],
        "model_type": "siglip_vision_model",
        **_sizes(vit),
        "intermediate_size": network.blocks[0].mlp.fc1.out_features,
        "vision_use_head": False,
    }
    tensors = {
        "embeddings.position_embedding.weight": patches[0],
        **_module("embeddings.patch_embedding", network.patch_embed.proj),
        **_module("post_layernorm", network.norm),
    }
    for number, block in enumerate(network.blocks):
        tensors |= {f"encoder.layers.{number}.{name}": tensor for name, tensor in _siglip_block(block).items()}
    tensors = {f"vision_model.{name}": tensor for name, tensor in tensors.items()}
    any_size = vit.architecture.resampling == "plain"
    note = "other image sizes need model(..., interpolate_pos_encoding=True)"
    return NativeModel(config, tensors, any_size, (note if any_size else _only_own_size(vit, "SiglipVisionModel"),))


def _siglip_block(block: Any) -> dict[str, Tensor]:
    attention = _split("self_attn", block.attn.qkv, ("q_proj", "k_proj", "v_proj"))
    for name in ("q_proj", "k_proj", "v_proj"):  # always with a bias
        attention.setdefault(f"self_attn.{name}.bias", torch.zeros_like(attention[f"self_attn.{name}.weight"][:, 0]))
    mlp = _padded_mlp(block.mlp, block.mlp.fc2.in_features, ("fc1", "fc2"))
    scaled = {**_module("self_attn.out_proj", block.attn.proj), **{f"mlp.{name}": t for name, t in mlp.items()}}
    for part, scale in (("self_attn.out_proj", _scale(block, "ls1")), ("mlp.fc2", _scale(block, "ls2"))):
        scaled[f"{part}.weight"] = scaled[f"{part}.weight"] * scale[:, None]
        scaled[f"{part}.bias"] = scaled[f"{part}.bias"] * scale
    return {**_module("layer_norm1", block.norm1), **_module("layer_norm2", block.norm2), **attention, **scaled}


def _dinov3(vit: RopeViT) -> NativeModel:
    """DINOv3: [class token, registers, patches], with rotary positions."""
    network, block = vit.network, vit.network.blocks[0]
    gated = type(block.mlp) is SwiGLU
    unknown = {
        "rotary positions other than DINOv3's": not vit.turns_like_dinov3 or network.rope.min_period is not None,
        "no class token": not vit.has_cls,
        "a norm before its blocks": not isinstance(network.norm_pre, nn.Identity),
        "a pooling with weights of its own": _has_own_pooling(network),
        "blocks of an unknown kind": any(type(each) is not EvaBlock for each in network.blocks),
        "attention of an unknown kind": type(block.attn) is not EvaAttention or block.attn.qkv is None,
        "norms inside attention or MLP": _has_inner_norm(block) or not isinstance(block.attn.q_norm, nn.Identity),
        "an MLP of an unknown kind": not (isinstance(block.mlp.act, nn.SiLU) if gated else _is_known_mlp(block.mlp)),
    }
    for part, present in unknown.items():
        if present:
            raise _inexpressible(vit, part)
    biased = block.attn.q_bias is not None
    config = {
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        **_sizes(vit),
        "hidden_act": "silu" if gated else "gelu",
        "intermediate_size": block.mlp.fc2.in_features,
        "rope_theta": network.rope.temperature,
        "query_bias": biased,
        "key_bias": False,
        "value_bias": biased,
        "use_gated_mlp": gated,
        "num_register_tokens": vit.registers,
        "layerscale_value": 1.0,
        "drop_path_rate": 0.0,
    }
    tensors = {
        "embeddings.cls_token": network.cls_token,
        "embeddings.mask_token": torch.zeros_like(network.cls_token),
        "embeddings.register_tokens": network.reg_token if vit.registers else network.cls_token[:, :0],
        **_module("embeddings.patch_embeddings", network.patch_embed.proj),
        **_module("norm", network.norm),
    }
    for number, each in enumerate(network.blocks):
        tensors |= {f"layer.{number}.{name}": tensor for name, tensor in _dinov3_block(each).items()}
    return NativeModel(config, tensors, any_size=True)


def _dinov3_block(block: Any) -> dict[str, Tensor]:
    ones, attn, mlp = torch.ones_like(block.norm1.weight), block.attn, block.mlp
    weights = zip(("q_proj", "k_proj", "v_proj"), attn.qkv.weight.chunk(3), strict=True)
    biases = {} if attn.q_bias is None else {"q_proj.bias": attn.q_bias, "v_proj.bias": attn.v_bias}
    inputs = {"gate_proj": mlp.fc1_g, "up_proj": mlp.fc1_x} if type(mlp) is SwiGLU else {"up_proj": mlp.fc1}
    return {
        **_module("norm1", block.norm1),
        **_module("norm2", block.norm2),
        **{f"attention.{name}.weight": tensor for name, tensor in weights},
        **{f"attention.{name}": tensor for name, tensor in biases.items()},
        **_module("attention.o_proj", attn.proj),
        **{name: tensor for part, layer in inputs.items() for name, tensor in _module(f"mlp.{part}", layer).items()},
        **_module("mlp.down_proj", mlp.fc2),
        "layer_scale1.lambda1": ones if block.gamma_1 is None else block.gamma_1,
        "layer_scale2.lambda1": ones if block.gamma_2 is None else block.gamma_2,
    }


def _has_own_pooling(network: Any) -> bool:
    return network.attn_pool is not None or not isinstance(network.fc_norm, nn.Identity)


def _swin(swin: Swin) -> NativeModel:
    network = swin.network
    blocks = [block for stage in network.layers for block in stage.blocks]
    windows = {tuple(block.window_size) for block in blocks}
    if len(windows) != 1:
        sides = sorted(window[0] for window in windows)
        raise _inexpressible(swin, f"windows of several sizes ({', '.join(map(str, sides))} patches)")
    window, first = windows.pop(), swin.image_size // network.patch_embed.patch_size[0]
    grids = [first // 2**stage for stage in range(len(network.layers))]
    if any(grid % window[0] for grid in grids):
        raise _inexpressible(swin, f"windows of {window[0]} patches that do not divide its grids of {grids}")
    config = {
        "architectures": ["SwinModel"],
        "model_type": "swin",
        "image_size": swin.image_size,
        "patch_size": network.patch_embed.patch_size[0],
        "num_channels": 3,
        "embed_dim": network.embed_dim,
        "depths": [len(stage.blocks) for stage in network.layers],
        "num_heads": [stage.blocks[0].attn.num_heads for stage in network.layers],
        "window_size": window[0],
        "mlp_ratio": blocks[0].mlp.fc1.out_features / blocks[0].mlp.fc1.in_features,
        "qkv_bias": blocks[0].attn.qkv.bias is not None,
        "hidden_act": "gelu",
        "layer_norm_eps": network.norm.eps,
        "use_absolute_embeddings": False,
        "drop_path_rate": 0.0,
    }
    tensors = {
        **_module("embeddings.patch_embeddings.projection", network.patch_embed.proj),
        **_module("embeddings.norm", network.patch_embed.norm),
        **_module("layernorm", network.norm),
    }
    for number, stage in enumerate(network.layers):
        if number:  # timm reduces the grid at the start of a stage, transformers at the end of the one before
            merging, place = stage.downsample, f"encoder.layers.{number - 1}.downsample"
            tensors |= {**_module(f"{place}.norm", merging.norm), **_module(f"{place}.reduction", merging.reduction)}
        for index, block in enumerate(stage.blocks):
            place = f"encoder.layers.{number}.blocks.{index}"
            tensors |= {f"{place}.{name}": tensor for name, tensor in _swin_block(block).items()}
    note = f"equal at {swin.image_size} pixels only: for other sizes transformers lays out the windows in another way"
    return NativeModel(config, tensors, any_size=False, notes=(note,))


def _swin_block(block: Any) -> dict[str, Tensor]:
    return {
        **_module("layernorm_before", block.norm1),
        **_split("attention.self", block.attn.qkv, ("query", "key", "value")),
        "attention.self.relative_position_bias_table": block.attn.relative_position_bias_table,
        **_module("attention.output.dense", block.attn.proj),
        **_module("layernorm_after", block.norm2),
        **_module("intermediate.dense", block.mlp.fc1),
        **_module("output.dense", block.mlp.fc2),
    }


def _sizes(vit: ViT) -> dict[str, Any]:
    network = vit.network
    return {
        "image_size": vit.image_size,
        "patch_size": vit.patch_size,
        "num_channels": 3,
        "hidden_size": vit.dim,
        "num_hidden_layers": vit.depth,
        "num_attention_heads": network.blocks[0].attn.num_heads,
        "hidden_act": "gelu",
        "layer_norm_eps": network.norm.eps,
    }


def _only_own_size(vit: ViT, name: str) -> str:
    own, theirs = vit.architecture.resampling, "antialiased" if "Registers" in name else "plain"
    return (
        f"equal at {vit.image_size} pixels only: for other sizes {name} resamples positions by the form {theirs!r}, "
        f"and this model's is {own!r}"
    )


def _module(name: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{kind}": tensor for kind, tensor in module.state_dict().items()}


def _split(place: str, qkv: nn.Linear, names: tuple[str, str, str]) -> dict[str, Tensor]:
    """Query, key and value of a fused layer."""
    return {
        f"{place}.{name}.{kind}": part
        for kind, tensor in qkv.state_dict().items()
        for name, part in zip(names, tensor.chunk(3), strict=True)
    }


def _scale(block: Any, name: str) -> Tensor:
    scale = getattr(block, name)
    return scale.gamma if isinstance(scale, LayerScale) else torch.ones_like(block.norm1.weight)
