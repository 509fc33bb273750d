"""Objects that two views of an image share: joint clustering of their tokens, and the mean token of each cluster.

The 2N tokens of both views are sorted into K clusters by entropic transport (CrIBo, appendix B). With z the unit
tokens, C the centroids and E the places of the patch centres in the original image,

    T[i, k] = distance from E_i to the nearest other member of cluster k          (positional cost)
    M = λ_pos T − z Cᵀ, scaled to [0, 1]                                          (whole cost)
    Q = diag(u) exp(−λ M) diag(v), rows summing to 1/2N and columns to c          (transport plan)

and every token goes to its largest entry of Q. Centroids are then the unit means of their members, and all is repeated.
Nothing here has a gradient except the means of given tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from asterism.config import Config
from asterism.ops.random import fold_each, uniform

_TINY = 1e-12  # keeps costs that are all alike from dividing by zero


class ClusteringConfig(Config):
    """How the tokens of two views become objects; appendix B."""

    algorithm: Literal["sinkhorn", "kmeans", "segments"] = "sinkhorn"
    # kmeans: by cosine alone (table 12); segments: the labelled regions of the data instead of clusters (table 11)
    clusters: int = Field(default=32, ge=1)  # K; more of them than there are objects works best (table 4)
    position_weight: float = Field(default=1.0, ge=0)  # λ_pos
    rounds: int = Field(default=5, ge=1)  # assignments, each followed by new centroids
    sharpness: float = Field(default=20.0, gt=0)  # λ: inverse weight of the entropy
    sinkhorn_iterations: int = Field(default=5, ge=1)
    marginals: Literal["estimated", "uniform"] = "estimated"
    # c, after the first round: sizes of the clusters so far, as the published code has it, or 1/K as equation 14 has it
    marginal_offset: float = Field(default=0.01, gt=0)  # tokens added to each size, so that no cluster is out for good
    cost_range: Literal["image", "batch"] = "image"
    # what is scaled to [0, 1] together; batch, as in the published code, lets the images of a batch change each other


@dataclass(frozen=True)
class Round:
    """One assignment of tokens to clusters."""

    cost: Float[Tensor, "b n k"]  # scaled to [0, 1]
    plan: Float[Tensor, "b n k"]
    labels: Int[Tensor, "b n"]


def draw_seeds(keys: Int[Tensor, " b"], tokens: int, clusters: int) -> Int[Tensor, "b {clusters}"]:
    """Different tokens of each image, uniformly drawn."""
    assert clusters <= tokens, f"{clusters} different seeds out of {tokens} tokens"
    return uniform(keys, tokens).argsort(dim=1)[:, :clusters]


@torch.no_grad()
def cluster(
    tokens: Float[Tensor, "b n d"],
    positions: Float[Tensor, "b n 2"],
    seeds: Int[Tensor, "b k"],
    config: ClusteringConfig,
) -> Int[Tensor, "b n"]:
    """The cluster of each token; the first centroids are the tokens `seeds`."""
    with torch.autocast(tokens.device.type, enabled=False):
        unit = F.normalize(tokens.float(), dim=-1)
        if config.algorithm == "kmeans":
            return kmeans(unit, seeds, config.rounds)
        assert config.algorithm == "sinkhorn", "labelled regions are not found but given"
        *_, last = transport_rounds(unit, positions, seeds, config)
        return last.labels


# ---------------------------------------------------------------------------------------------------------- transport


@torch.no_grad()
def transport_rounds(
    unit: Float[Tensor, "b n d"],
    positions: Float[Tensor, "b n 2"],
    seeds: Int[Tensor, "b k"],
    config: ClusteringConfig,
) -> Iterator[Round]:
    """The assignments of clustering by transport, one after another."""
    clusters = seeds.shape[1]
    centroids = _rows(unit, seeds)
    labels = _only(seeds, unit.shape[1])
    sizes = unit.new_ones(len(unit), clusters)
    distances = distances_to_others(positions) if config.position_weight else None
    for _ in range(config.rounds):
        cost = -(unit @ centroids.mT)
        if distances is not None:
            cost += config.position_weight * positional_cost(distances, labels, clusters)
        cost = to_unit_range(cost, config.cost_range)
        plan = transport_plan(cost, config.sharpness, sizes, config.sinkhorn_iterations)
        labels = plan.argmax(dim=-1)
        yield Round(cost, plan, labels)
        members = membership(labels, clusters)
        centroids = F.normalize(members.mT @ unit, dim=-1)  # of an empty cluster: zero
        if config.marginals == "estimated":
            sizes = members.sum(dim=1) + config.marginal_offset


def distances_to_others(positions: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n n"]:
    """Distance between any two places; infinite where they coincide, as every token does with itself."""
    distances = torch.cdist(positions, positions, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.masked_fill_(distances == 0, torch.inf)


def positional_cost(
    distances: Float[Tensor, "b n n"], labels: Int[Tensor, "b n"], clusters: int
) -> Float[Tensor, "b n {clusters}"]:
    """T, divided by its largest entry in each image.

    A cluster in which a token finds nobody at another place costs the image's mean, taken with zeros for such entries.
    """
    nearest = nearest_member(distances, labels, clusters)
    alone = nearest.isinf()
    nearest = nearest.masked_fill(alone, 0.0)
    cost = torch.where(alone, nearest.mean(dim=(1, 2), keepdim=True), nearest)
    return cost / cost.amax(dim=(1, 2), keepdim=True).clamp_min(_TINY)


def nearest_member(
    distances: Float[Tensor, "b n n"], labels: Int[Tensor, "b n"], clusters: int
) -> Float[Tensor, "b n {clusters}"]:
    """Distance from each token to the nearest member of each cluster, infinite where there is none.

    Row j of the distances is folded by minimum into the row of j's cluster, so that n² numbers are read once and the
    n × n × k tensor of distances to members is never made. Tokens with label −1 are members of nothing.
    """
    b, n, _ = distances.shape
    bins = torch.where(labels < 0, clusters, labels) + (clusters + 1) * torch.arange(b, device=labels.device)[:, None]
    folded = distances.new_full((b * (clusters + 1), n), torch.inf)
    # Rows of equal index along the first axis: the form for which torch has vectorised code.
    folded.scatter_reduce_(0, bins.reshape(-1, 1).expand(-1, n), distances.reshape(b * n, n), "amin")
    return folded.view(b, clusters + 1, n)[:, :clusters].mT


def to_unit_range(cost: Float[Tensor, "b n k"], within: Literal["image", "batch"]) -> Float[Tensor, "b n k"]:
    """Costs between 0 and 1, over each image or over the whole batch."""
    axes = (1, 2) if within == "image" else (0, 1, 2)
    low, high = cost.amin(dim=axes, keepdim=True), cost.amax(dim=axes, keepdim=True)
    return (cost - low) / (high - low).clamp_min(_TINY)


def transport_plan(
    cost: Float[Tensor, "b n k"], sharpness: float, sizes: Float[Tensor, "b k"], iterations: int
) -> Float[Tensor, "b n k"]:
    """Sinkhorn and Knopp: rows are brought to 1/n, then columns to their share of `sizes`, by turns.

    Only two vectors change: u scales the rows of exp(−sharpness · cost), v its columns.
    """
    kernel = torch.exp(-sharpness * cost)
    columns = (sizes / sizes.sum(dim=1, keepdim=True))[..., None]
    v = torch.ones_like(columns)
    for _ in range(iterations):
        u = 1 / (cost.shape[1] * (kernel @ v))
        v = columns / (kernel.mT @ u)
    return u * kernel * v.mT


# ------------------------------------------------------------------------------------------------------- alternatives


@torch.no_grad()
def kmeans(unit: Float[Tensor, "b n d"], seeds: Int[Tensor, "b k"], rounds: int) -> Int[Tensor, "b n"]:
    """Tokens go to the centroid of the largest cosine. A cluster that lost all its members keeps its centroid."""
    clusters = seeds.shape[1]
    centroids = _rows(unit, seeds)
    for _ in range(rounds):
        labels = (unit @ centroids.mT).argmax(dim=-1)
        members = membership(labels, clusters)
        means = F.normalize(members.mT @ unit, dim=-1)
        centroids = torch.where(members.any(dim=1)[..., None], means, centroids)
    return labels


def labels_of_patches(segments: Int[Tensor, "b h w"], grid: tuple[int, int]) -> Int[Tensor, "b n"]:
    """The label under the middle of each patch."""
    _, height, width = segments.shape
    rows, columns = grid
    y = ((torch.arange(rows, device=segments.device) + 0.5) * height / rows).long()
    x = ((torch.arange(columns, device=segments.device) + 0.5) * width / columns).long()
    return segments[:, y[:, None], x].flatten(1)


def largest_regions(labels: Int[Tensor, "b n"], clusters: int) -> Int[Tensor, "b n"]:
    """Any labels as 0 … clusters − 1: the largest regions of each image, largest first; −1 for the others.

    Negative labels mean that nothing is known. Regions of equal size are ordered by their labels.
    """
    same = labels[:, :, None] == labels[:, None, :]
    size = same.sum(dim=-1) * (labels >= 0)
    # A region comes before another if it is larger, or as large and of a smaller label; every region counts once.
    before = (size[:, None, :] > size[:, :, None]) | (
        (size[:, None, :] == size[:, :, None]) & (labels[:, None, :] < labels[:, :, None])
    )
    first = ~same.tril(diagonal=-1).any(dim=-1) & (labels >= 0)
    rank = (before & first[:, None, :]).sum(dim=-1)
    return torch.where((labels >= 0) & (rank < clusters), rank, -1)


def label_sets(
    labels: Int[Tensor, "v b n"], patches: Int[Tensor, "v b n"], clusters: int
) -> Int[Tensor, "b {clusters}"]:
    """A number for the set of labels that the patches of each cluster have, in all views: the same for equal sets."""
    cluster_of, label = labels.transpose(0, 1).flatten(1), patches.transpose(0, 1).flatten(1)
    again = (cluster_of[:, :, None] == cluster_of[:, None]) & (label[:, :, None] == label[:, None])
    first = ~again.tril(diagonal=-1).any(dim=-1)  # so that every label counts once
    words = fold_each(label.flatten().long(), 0).view_as(label) * first
    sums = words.new_zeros(len(words), clusters + 1)
    return sums.scatter_add_(1, torch.where(cluster_of < 0, clusters, cluster_of), words)[:, :clusters]


# ------------------------------------------------------------------------------------------------------------ objects


def membership(labels: Int[Tensor, "*b n"], clusters: int) -> Float[Tensor, "*b n {clusters}"]:
    """One where a token belongs to a cluster, else zero; tokens with label −1 belong to none."""
    return (labels[..., None] == torch.arange(clusters, device=labels.device)).float()


def present_in_all(labels: Int[Tensor, "v b n"], clusters: int) -> Bool[Tensor, "b {clusters}"]:
    """Which clusters have a token in every view."""
    return membership(labels, clusters).any(dim=2).all(dim=0)


def mean_tokens(
    tokens: Float[Tensor, "v b n d"], labels: Int[Tensor, "v b n"], clusters: int
) -> Float[Tensor, "v b {clusters} d"]:
    """The mean token of each cluster in each view; zero where the cluster is missing in one of the views."""
    members = membership(labels, clusters)
    counts = members.sum(dim=2)
    shares = members * (present_in_all(labels, clusters) / counts.clamp_min(1))[:, :, None]
    with torch.autocast(tokens.device.type, enabled=False):
        return shares.mT @ tokens.float()


def _rows(tokens: Float[Tensor, "b n d"], index: Int[Tensor, "b k"]) -> Float[Tensor, "b k d"]:
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


def _only(seeds: Int[Tensor, "b k"], tokens: int) -> Int[Tensor, "b {tokens}"]:
    """Labels by which each cluster has its seed as only member."""
    b, k = seeds.shape
    numbers = torch.arange(k, device=seeds.device).expand(b, k)
    return torch.full((b, tokens), -1, device=seeds.device).scatter_(1, seeds, numbers)
