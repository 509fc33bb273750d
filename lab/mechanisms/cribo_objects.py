"""CrIBo's objects: whether a cluster of patches is one thing, and the same thing in both views.

The teacher's tokens of two views are clustered in three ways: jointly by transport, as in training; jointly by k-means;
and each view by itself, with clusters of the two views matched one to one by the cosine of their means. `purity` is the
share of patches that have the main class of their object; `same` is the share of objects, among those in both views,
whose main class is the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.methods.cribo import Cribo
from asterism.methods.parts.labelled_objects import patch_labels
from asterism.nn.backbone import encode_views
from asterism.ops.assignment import hungarian
from asterism.ops.clustering import ClusteringConfig, cluster, membership, present_in_all
from asterism.train.building import load_method
from asterism.train.run import Run
from asterism.types import Batch, Progress, Tokens
from lab.mechanisms.agreement import same_share
from lab.mechanisms.cribo_matches import object_classes
from lab.mechanisms.labelled_views import labelled_batches

Grouping = Callable[[Cribo, Batch, Sequence[Tokens], ClusteringConfig], Int[Tensor, "2 b n"]]


@torch.no_grad()
def measure_objects(run: Run, data: str, *, batches: int = 8, batch_size: int = 32) -> dict[str, float]:
    """Purity and agreement of the objects of every way of clustering, in percent."""
    method = load_method(run)
    if not isinstance(method, Cribo):
        raise UserError(f"{run.path} is a run of {run.config['method']['name']}; only cribo has objects")
    recipe = run.recipe
    steps = recipe.trainer.steps or 1
    config = method.config.objects.at(Progress(steps - 1, steps, steps, recipe.trainer.seed))
    found: dict[str, list[Tensor]] = {name: [] for name in GROUPINGS}
    truth: list[Tensor] = []
    for batch in labelled_batches(method, recipe, data, batches, batch_size):
        seen = encode_views(method.teacher_backbone, [view.pixels for view in batch.views])
        truth.append(patch_labels(batch.views, seen))
        for name, group in GROUPINGS.items():
            found[name].append(group(method, batch, seen, config))
    classes = torch.cat(truth, dim=1)
    values = {name: agreement(torch.cat(labels, dim=1), classes, config.clusters) for name, labels in found.items()}
    return {f"{name}, {measure}": value for name, each in values.items() for measure, value in each.items()}


def agreement(labels: Int[Tensor, "2 b n"], segments: Int[Tensor, "2 b n"], clusters: int) -> dict[str, float]:
    """Purity of objects, and the share of those in both views that show the same class there, in percent."""
    own = object_classes(labels, segments, clusters)
    main = own.expand(2, -1, -1).gather(2, labels.clamp_min(0))
    member = (labels >= 0) & (segments >= 0)
    first, second = (object_classes(labels[v : v + 1], segments[v : v + 1], clusters) for v in (0, 1))
    both = present_in_all(labels, clusters)
    return {
        "purity": 100 * same_share(main.flatten(), segments.flatten(), member.flatten()),
        "same": 100 * same_share(first.flatten(), second.flatten(), both.flatten()),
    }


def _jointly(algorithm: str) -> Grouping:
    def group(method: Cribo, batch: Batch, z: Sequence[Tokens], config: ClusteringConfig) -> Int[Tensor, "2 b n"]:
        return method.cluster(batch.views, list(z), batch.keys, config.model_copy(update={"algorithm": algorithm}))

    return group


def _separately(method: Cribo, batch: Batch, z: Sequence[Tokens], config: ClusteringConfig) -> Int[Tensor, "2 b n"]:
    """Each view clustered by transport alone; the second view's clusters then take the numbers of their partners."""
    first, second = (
        cluster(
            tokens.patches,
            method.patch_places([view], [tokens]),
            method.first_centroids(batch.keys, tokens.patches.shape[1], config.clusters),
            config,
        )
        for view, tokens in zip(batch.views, z, strict=True)
    )
    means = [_means(tokens.patches, labels, config.clusters) for tokens, labels in zip(z, (first, second), strict=True)]
    return torch.stack([first, renumbered(second, *means)])


def renumbered(
    second: Int[Tensor, "b n"], means_first: Float[Tensor, "b k d"], means_second: Float[Tensor, "b k d"]
) -> Int[Tensor, "b n"]:
    """The second view's labels in the numbers of the first: each cluster takes that of its partner."""
    partner = hungarian(-(means_second @ means_first.mT))  # of every cluster of the second view
    return partner.gather(1, second)


def _means(tokens: Float[Tensor, "b n d"], labels: Int[Tensor, "b n"], clusters: int) -> Float[Tensor, "b k d"]:
    return F.normalize(membership(labels, clusters).mT @ tokens.float(), dim=-1)


GROUPINGS: Mapping[str, Grouping] = {
    "jointly by transport": _jointly("sinkhorn"),
    "jointly by k-means": _jointly("kmeans"),
    "each view alone": _separately,
}
