"""Mean-shift among tokens: attention without projections, which moves a token to the mode of its cluster.

With keys Z and the inverse temperature τ (FLSL, equation 4), one step is

    ẑ = Σ_i softmax_i(τ z·z_i) z_i.

On the keys of the token's own view it finds the cluster's representative; on those of another view it retrieves the
matching cluster there (equation 12). Nothing is normalised, and the map of queries × keys is never kept.

>>> Z = torch.tensor([[[3.0, 0.0], [3.0, 0.6], [0.0, 3.0], [0.6, 3.0]]])  # two clusters of two tokens
>>> z = Z[:, :1]
>>> mean_shift(z, Z, scale=1.0).mul(10).round().int().tolist()  # the middle of the first cluster
[[[30, 3]]]
>>> seen_elsewhere = torch.tensor([[[0.0, 5.0], [5.0, 0.0]]])
>>> mean_shift(z, seen_elsewhere, scale=1.0).round().tolist()  # the matching cluster of another view
[[[5.0, 0.0]]]
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def mean_shift(
    queries: Float[Tensor, "b q d"], keys: Float[Tensor, "b n d"], scale: float, steps: int = 1
) -> Float[Tensor, "b q d"]:
    """The queries after some steps towards the modes of the keys; `scale` is τ and multiplies dot products.

    Concatenate queries from several views of an image along the query axis, so that the keys are stored only once.
    """
    source, modes = keys[:, None], queries[:, None]
    for _ in range(steps):
        modes = F.scaled_dot_product_attention(modes, source, source, scale=scale)
    return modes[:, 0]


def take(tokens: Float[Tensor, "b n d"], places: Int[Tensor, "b q"]) -> Float[Tensor, "b q d"]:
    """The tokens at these positions of each image."""
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[-1]))


def mode_distance(tokens: Float[Tensor, "n d"], modes: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Mean squared distance of tokens to their modes, both normalised to unit length: 2 − 2 · mean cosine."""
    return 2 - 2 * F.cosine_similarity(tokens.float(), modes.float(), dim=-1, eps=1e-12).mean()
