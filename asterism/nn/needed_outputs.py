"""A transformer block of which only some output tokens are needed: the others are not computed.

Every output token of a block depends on the keys and values of all tokens, but on no other query. So where a loss uses
only class tokens, the last block needs one query, projection and MLP per image. For so few queries, keys and values are
not computed either.
With H heads, input tokens n_t, a query q of a head and the head's weights W_K and W_V,

    ⟨q, W_K n_t + b_K⟩ = ⟨W_Kᵀ q, n_t⟩ + a constant, which softmax ignores,
    Σ_t a_t (W_V n_t + b_V) = W_V Σ_t a_t n_t + b_V, as Σ_t a_t = 1:

the head attends to the input tokens themselves. Of a block's 12 d² multiplications per token, 2 H d remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from asterism.ops.sharding import is_sharded

# Which patch tokens the caller of a backbone uses: those where a mask is true, all, or none.
NeededPatches = Bool[Tensor, "b n"] | Literal["all", "none"]


def can_skip_outputs(block: nn.Module) -> bool:
    """Whether the block is timm's plain one, whose steps are known here, and whether its weights are all present.

    The weights of a sharded block are gathered when the block itself is called.
    """
    from timm.layers import DropPath  # type: ignore[attr-defined]
    from timm.models.vision_transformer import Attention, Block  # type: ignore[attr-defined]

    if is_sharded(block) or not isinstance(block, Block):
        return False
    attention: Any = block.attn
    random = any(type(path) is DropPath for path in (block.drop_path1, block.drop_path2))
    return type(attention) is Attention and attention.gate is None and attention.attn_drop.p == 0 and not random


def first_outputs(
    block: Any, x: Float[Tensor, "b t d"], factors: Float[Tensor, "2 b"] | None, count: int
) -> Float[Tensor, "b {count} d"]:
    """The first `count` tokens of `block(x)`."""
    without_keys = isinstance(block.attn.k_norm, nn.Identity) and _few(count, x.shape[1], block.attn)
    attend = _attended_inputs if without_keys else _attended_values
    found = attend(block.attn, block.norm1(x), slice(count))
    return _rest(block, x[:, :count], found, _each(factors, lambda f: f[:, None, None]))


def last_outputs(block: Any, x: Float[Tensor, "b t d"], count: int) -> Float[Tensor, "b {count} d"]:
    """The last `count` tokens of `block(x)`."""
    found = _attended_values(block.attn, block.norm1(x), slice(-count, None))
    return _rest(block, x[:, -count:], found, None)


def rows_of_outputs(
    block: Any, x: Float[Tensor, "b t d"], factors: Float[Tensor, "2 b"] | None, rows: Int[Tensor, " r"]
) -> Float[Tensor, "r d"]:
    """`block(x).flatten(0, 1)[rows]`: attention is computed for all tokens, the rest for these rows alone."""
    attention = block.attn
    query, key, value = (_by_head(attention, each) for each in attention.qkv(block.norm1(x)).chunk(3, dim=-1))
    found = F.scaled_dot_product_attention(attention.q_norm(query), attention.k_norm(key), value)
    chosen = found.transpose(1, 2).flatten(2).flatten(0, 1)[rows]
    return _rest(block, x.flatten(0, 1)[rows], chosen, _each(factors, lambda f: f[rows // x.shape[1]][:, None]))


def _few(queries: int, tokens: int, attention: Any) -> bool:
    """Whether `_attended_inputs` takes fewer multiplications than `_attended_values` for so many queries per image."""
    width, heads = attention.attn_dim, attention.num_heads
    return queries * (heads * tokens + width) < tokens * (width + queries)


def _attended_inputs(attention: Any, x: Float[Tensor, "b t d"], queries: slice) -> Float[Tensor, "b q a"]:
    """Concatenated heads for these queries, without keys and values: for a few queries."""
    query_weight, key_weight, value_weight = attention.qkv.weight.unflatten(0, (3, attention.num_heads, -1))
    biases = None if attention.qkv.bias is None else attention.qkv.bias.unflatten(0, (3, -1))
    query = F.linear(x[:, queries], query_weight.flatten(0, 1), None if biases is None else biases[0])
    query = attention.q_norm(_by_head(attention, query))
    towards = torch.einsum("bhqk,hkd->bhqd", query, key_weight)
    (b, h, q, _), inputs = towards.shape, x[:, None]
    means = F.scaled_dot_product_attention(towards.flatten(1, 2)[:, None], inputs, inputs, scale=attention.scale)
    found = torch.einsum("bhqd,hkd->bqhk", means.view(b, h, q, -1), value_weight).flatten(2)
    return found if biases is None else found + biases[2].to(found.dtype)


def _attended_values(attention: Any, x: Float[Tensor, "b t d"], queries: slice) -> Float[Tensor, "b q a"]:
    """Concatenated heads for these queries, with keys and values of all tokens: for many queries."""
    weight, bias, width = attention.qkv.weight, attention.qkv.bias, attention.attn_dim
    query = F.linear(x[:, queries], weight[:width], None if bias is None else bias[:width])
    key, value = F.linear(x, weight[width:], None if bias is None else bias[width:]).chunk(2, dim=-1)
    query, key, value = (_by_head(attention, each) for each in (query, key, value))
    found = F.scaled_dot_product_attention(attention.q_norm(query), attention.k_norm(key), value)
    return found.transpose(1, 2).flatten(2)


def _rest(block: Any, x: Tensor, attended: Tensor, factors: Sequence[Tensor] | None) -> Tensor:
    """What follows the attention: projection, residual sum, and MLP."""
    first, second = (None, None) if factors is None else factors
    x = x + _scaled(block.ls1(block.attn.proj_drop(block.attn.proj(block.attn.norm(attended)))), first)
    return x + _scaled(block.ls2(block.mlp(block.norm2(x))), second)


def _scaled(branch: Tensor, factor: Tensor | None) -> Tensor:
    return branch if factor is None else branch * factor.to(branch.dtype)


def _each(factors: Tensor | None, shaped: Any) -> Sequence[Tensor] | None:
    return None if factors is None else [shaped(factor) for factor in factors]


def _by_head(attention: Any, x: Float[Tensor, "b t a"]) -> Float[Tensor, "b heads t k"]:
    return x.view(*x.shape[:2], attention.num_heads, attention.head_dim).transpose(1, 2)


def placed_rows(rows: Int[Tensor, " r"], values: Float[Tensor, "r d"], shape: torch.Size) -> Float[Tensor, "b t d"]:
    """A tensor of zeros with these values in some rows, counted over all images."""
    return values.new_zeros(shape).flatten(0, 1).index_copy(0, rows, values).view(shape)
