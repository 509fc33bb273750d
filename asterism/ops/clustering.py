"""Objects that two views of an image share: joint clustering of their tokens, and the mean token of each cluster.

The 2N tokens z of both views are assigned to K clusters by entropic transport (CrIBo, appendix B). With c the
centroids, E the positions of the patch centres in the original image and S the current tokens of each cluster,

    T_sem[n, k] = −⟨c_k, z_n⟩ / (‖c_k‖ ‖z_n‖)                                     (eq. 12)
    T_pos[n, k] = min over l ∈ S_k of ‖E_n − E_l‖, in units of its maximum         (eq. 17)
    T = T_sem + λ_pos T_pos, scaled to [0, 1]                                      (eq. 16)
    Q = argmin ⟨Q, T⟩ − H(Q)/λ, rows summing to 1/2N and columns to the marginals  (eq. 13, 14)
    c_k = unit mean of the tokens whose largest entry of Q is in column k          (eq. 15)

and these steps are repeated. Nothing here has a gradient except the means of given tokens.

>>> z = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]])  # two tokens of view 1, two of view 2
>>> E = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [9.0, 9.0], [9.0, 8.0]]])
>>> Q = cluster(z, E, seeds=torch.tensor([[0, 2]]), config=ClusteringConfig(clusters=2))
>>> Q.tolist()
[[0, 0, 1, 1]]

Here no cluster has a token in both views, so the image has no object:

>>> by_view = torch.stack(Q.chunk(2, dim=1))
>>> present_in_all(by_view, clusters=2).tolist()
[[False, False]]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.config import Config
from asterism.errors import UserError
from asterism.ops.random import uniform
from asterism.ops.schedules import ramp_per_epoch
from asterism.ranges import Count, Few, NonNegative, Positive
from asterism.types import Progress

_TINY = 1e-12  # avoids division by zero when all costs are equal


class ClusteringConfig(Config):
    """How the tokens of two views become objects; appendix B."""

    algorithm: Literal["sinkhorn", "kmeans", "segments"] = "sinkhorn"
    # kmeans: by cosine alone (table 12); segments: the labelled regions of the data instead of clusters (table 11)
    clusters: Count = 32  # K; more of them than there are objects works best (table 4)
    position_weight: NonNegative = 1.0  # λ_pos
    final_position_weight: NonNegative | None = None
    # λ_pos of the last epoch, reached linearly in steps of one epoch; None: constant
    rounds: Few = 5  # assignments, each followed by new centroids
    sharpness: Positive = 20.0  # λ: inverse weight of the entropy
    sinkhorn_iterations: Few = 5
    marginals: Literal["estimated", "uniform"] = "estimated"
    # column marginals after the first round: current cluster sizes, as in the published code, or 1/K (eq. 14)
    marginal_offset: Positive = 0.01  # tokens added to each size, so that empty clusters can recover
    cost_range: Literal["image", "batch"] = "image"
    # costs are scaled to [0, 1] over each image, or over a process's whole (micro-)batch, as in the published code

    def at(self, progress: Progress) -> ClusteringConfig:
        """The settings of this epoch, with a single λ_pos."""
        if self.final_position_weight is None:
            return self
        weight = ramp_per_epoch(progress, progress.epochs, self.position_weight, self.final_position_weight)
        return self.model_copy(update={"position_weight": weight, "final_position_weight": None})

    def for_pictures(self, tokens: int) -> ClusteringConfig:
        """The settings for unlabelled images with this many tokens."""
        algorithm = "kmeans" if self.algorithm == "kmeans" else "sinkhorn"
        changes = {"algorithm": algorithm, "clusters": min(self.clusters, tokens), "final_position_weight": None}
        return self.model_copy(update=changes)

    def check_tokens(self, tokens: int) -> None:
        """Refuse more clusters than tokens: every cluster starts from a different token."""
        if self.clusters > tokens:
            raise UserError(
                f"method.objects.clusters = {self.clusters} is more than the {tokens} tokens of an image's views; "
                f"choose 1 … {tokens}"
            )


@dataclass(frozen=True)
class Round:
    """One assignment of tokens to clusters."""

    cost: Float[Tensor, "b n k"]  # T, scaled to [0, 1]
    plan: Float[Tensor, "b n k"]  # Q
    labels: Int[Tensor, "b n"]


def draw_seeds(keys: Int[Tensor, " b"], tokens: int, clusters: int) -> Int[Tensor, "b {clusters}"]:
    """Distinct tokens of each image, drawn uniformly."""
    assert clusters <= tokens, f"cannot draw {clusters} distinct seeds from {tokens} tokens"
    return uniform(keys, tokens).argsort(dim=1)[:, :clusters]


@torch.no_grad()
def cluster(
    tokens: Float[Tensor, "b n d"],
    positions: Float[Tensor, "b n 2"],
    seeds: Int[Tensor, "b k"],
    config: ClusteringConfig,
) -> Int[Tensor, "b n"]:
    """The cluster of each token; the initial centroids are the tokens `seeds`."""
    with torch.autocast(tokens.device.type, enabled=False):
        unit = F.normalize(tokens.float(), dim=-1)
        if config.algorithm == "kmeans":
            return kmeans(unit, seeds, config.rounds)
        assert config.algorithm == "sinkhorn", "labelled regions are read from the data, not clustered"
        *_, last = transport_rounds(unit, positions, seeds, config)
        return last.labels


# ---------------------------------------------------------------------------------------------------------- transport


@torch.no_grad()
def transport_rounds(
    z: Float[Tensor, "b n d"], E: Float[Tensor, "b n 2"], seeds: Int[Tensor, "b k"], config: ClusteringConfig
) -> Iterator[Round]:
    """The successive assignments of clustering by transport; `z` has unit rows."""
    assert config.final_position_weight is None, "choose an epoch first: config.at(progress)"
    K, λ_pos = seeds.shape[1], config.position_weight
    c = _rows(z, seeds)
    S = _only(seeds, z.shape[1])
    sizes = z.new_ones(len(z), K)
    distances = distances_to_others(E) if λ_pos else None
    for _ in range(config.rounds):
        T = -(z @ c.mT)
        if distances is not None:
            T += λ_pos * positional_cost(distances, S, K)
        T = to_unit_range(T, config.cost_range)
        Q = sinkhorn_plan(T, config.sharpness, sizes, config.sinkhorn_iterations)
        S = Q.argmax(dim=-1)
        yield Round(T, Q, S)
        members = membership(S, K)
        c = F.normalize(members.mT @ z, dim=-1)  # zero for an empty cluster
        if config.marginals == "estimated":
            sizes = members.sum(dim=1) + config.marginal_offset


def distances_to_others(positions: Float[Tensor, "b n 2"]) -> Float[Tensor, "b n n"]:
    """Pairwise distances between positions; infinite where they coincide, so also between a token and itself."""
    distances = torch.cdist(positions, positions, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.masked_fill_(distances == 0, torch.inf)


def positional_cost(
    distances: Float[Tensor, "b n n"], labels: Int[Tensor, "b n"], clusters: int
) -> Float[Tensor, "b n {clusters}"]:
    """T_pos: the distance to the nearest member of each cluster, divided by the largest of the image.

    A cluster without a member at another position costs the image's mean, in which such entries count as zero.
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

    Row j of the distances is reduced by minimum into the row of j's cluster: n² numbers are read once, and the
    n × n × k tensor of distances to members is never formed. Tokens with label −1 belong to no cluster.
    """
    b, n, _ = distances.shape
    bins = torch.where(labels < 0, clusters, labels) + (clusters + 1) * torch.arange(b, device=labels.device)[:, None]
    folded = distances.new_full((b * (clusters + 1), n), torch.inf)
    # The index is constant along each row: torch vectorises this form.
    folded.scatter_reduce_(0, bins.reshape(-1, 1).expand(-1, n), distances.reshape(b * n, n), "amin")
    return folded.view(b, clusters + 1, n)[:, :clusters].mT


def to_unit_range(cost: Float[Tensor, "b n k"], within: Literal["image", "batch"]) -> Float[Tensor, "b n k"]:
    """Costs scaled to [0, 1] over each image or over the whole batch."""
    axes = (1, 2) if within == "image" else (0, 1, 2)
    low, high = cost.amin(dim=axes, keepdim=True), cost.amax(dim=axes, keepdim=True)
    return (cost - low) / (high - low).clamp_min(_TINY)


def sinkhorn_plan(
    cost: Float[Tensor, "b n k"], sharpness: float, sizes: Float[Tensor, "b k"], iterations: int
) -> Float[Tensor, "b n k"]:
    """Q by Sinkhorn and Knopp: rows are scaled to sum to 1/n and columns to their share of `sizes`, alternately.

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
    """Assign each token to the centroid of largest cosine. A cluster that loses all its members keeps its centroid."""
    clusters = seeds.shape[1]
    centroids = _rows(unit, seeds)
    for _ in range(rounds):
        labels = (unit @ centroids.mT).argmax(dim=-1)
        members = membership(labels, clusters)
        means = F.normalize(members.mT @ unit, dim=-1)
        centroids = torch.where(members.any(dim=1)[..., None], means, centroids)
    return labels


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
    """Labels that make each seed the only member of its cluster."""
    b, k = seeds.shape
    numbers = torch.arange(k, device=seeds.device).expand(b, k)
    return torch.full((b, tokens), -1, device=seeds.device).scatter_(1, seeds, numbers)
