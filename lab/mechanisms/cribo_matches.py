"""CrIBo's matches: how often an object and its neighbour in another image show the same class.

Objects of an image's two views retrieve their nearest neighbours from a bank of other images, as in training. The share
of pairs with the same true class is counted for pairs that the cycle accepts, for all pairs, and for random pairs. The
class of an object is that of most of its patches. The background fills half of the patches, so the shares are also
counted without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.cribo import Cribo
from asterism.methods.parts.labelled_objects import patch_labels
from asterism.nn.backbone import encode_views
from asterism.nn.object_bank import BankConfig, ObjectBank, StoredObjects
from asterism.ops.clustering import mean_tokens, present_in_all
from asterism.ops.cycle_consistency import closes_cycle
from asterism.train.building import load_method
from asterism.train.run import Run
from asterism.types import Batch, Progress
from lab.mechanisms.agreement import chance_of_equals, same_share
from lab.mechanisms.labelled_views import labelled_batches

VIEWS = 2


@dataclass(frozen=True)
class Matches:
    """Query objects and their nearest neighbours in the bank: one entry per object and view."""

    own: Int[Tensor, " n"]  # class, −1 if unknown
    found: Int[Tensor, " n"]  # class of the neighbour
    accepted: Bool[Tensor, " n"]  # by the cycle
    bank: Int[Tensor, " s"]  # classes of all objects of the bank

    def shares(self, without: int | None = None) -> dict[str, float]:
        """Percent of the pairs with equal classes. without: a class whose objects are not counted as queries."""
        queries = torch.ones_like(self.accepted) if without is None else self.own != without
        return {
            "cycle": 100 * same_share(self.own, self.found, queries & self.accepted),
            "all": 100 * same_share(self.own, self.found, queries),
            "random": 100 * chance_of_equals(self.own[queries], self.bank),
            "accepted": 100 * self.accepted[queries].double().mean().item(),
        }


def measure_matches(
    run: Run, data: str, *, batches: int = 16, batch_size: int = 32, bank_images: int | None = None
) -> Matches:
    """Matches of the trained model on images with masks; the first half of the batches only fills the bank.

    bank_images: how many of the latest images the bank holds; None: all.
    """
    method = load_method(run)
    if not isinstance(method, Cribo):
        raise UserError(f"{run.path} is a run of {run.config['method']['name']}; only cribo has matches")
    recipe = run.recipe
    clusters = method.config.objects.clusters
    bank_config = BankConfig(images=bank_images or batches * batch_size, precision="full")
    bank = ObjectBank(bank_config, clusters, method.backbone.dim)
    found: list[Matches] = []
    steps = recipe.trainer.steps or 1
    end = Progress(steps - 1, steps, steps, recipe.trainer.seed)
    for number, batch in enumerate(labelled_batches(method, recipe, data, batches, batch_size)):
        objects, valid, classes = objects_and_classes(method, batch, end)
        if 2 * number >= batches:
            image = batch.index[:, None].expand_as(valid)[valid]
            found.append(match_objects(bank, objects[:, valid], image, classes[valid]))
        bank.push(StoredObjects(objects.permute(1, 2, 0, 3), valid, classes, batch.index, batch.keys))
    return Matches(
        own=torch.cat([part.own for part in found]),
        found=torch.cat([part.found for part in found]),
        accepted=torch.cat([part.accepted for part in found]),
        bank=bank.meaning[bank.valid],
    )


@torch.no_grad()
def objects_and_classes(
    method: Cribo, batch: Batch, progress: Progress
) -> tuple[Float[Tensor, "v b k d"], Bool[Tensor, "b k"], Int[Tensor, "b k"]]:
    """The teacher's objects, which of them are in both views, and the true class of each."""
    seen = encode_views(method.teacher_backbone, [view.pixels for view in batch.views])
    labels = method.find_objects(batch, seen, progress)
    clusters = method.config.objects.clusters
    objects = mean_tokens(torch.stack([view.patches for view in seen]), labels, clusters)
    return (
        objects,
        present_in_all(labels, clusters),
        object_classes(labels, patch_labels(batch.views, seen), clusters),
    )


def object_classes(labels: Int[Tensor, "v b n"], segments: Int[Tensor, "v b n"], clusters: int) -> Int[Tensor, "b k"]:
    """The most frequent class of each object's patches in all views; the smallest on a tie, −1 if none is known."""
    classes = int(segments.max().clamp_min(0)) + 1
    counts = torch.zeros(labels.shape[1], clusters, classes + 1, dtype=torch.int64)
    image = torch.arange(labels.shape[1])[:, None].expand_as(labels[0])
    for objects, truth in zip(labels, segments, strict=True):
        member = objects >= 0
        places = (image[member], objects[member], torch.where(truth < 0, classes, truth)[member])
        counts.index_put_(places, torch.ones(len(places[0]), dtype=torch.int64), accumulate=True)
    known = counts[..., :classes]
    return torch.where(known.sum(-1) > 0, known.argmax(-1), -1)


@torch.no_grad()
def match_objects(
    bank: ObjectBank, objects: Float[Tensor, "v m d"], image: Int[Tensor, " m"], classes: Int[Tensor, " m"]
) -> Matches:
    """The nearest neighbours of objects in the bank, whose `meaning` holds the classes of its objects."""
    slots = bank.nearest(objects, image)
    accepted = closes_cycle(slots, objects, bank.rows.flatten(1, 2))
    found = torch.where(slots >= 0, bank.meaning.flatten()[slots.clamp_min(0)], -1)
    return Matches(classes.repeat(VIEWS), found.flatten(), accepted.flatten(), bank.meaning[bank.valid])
