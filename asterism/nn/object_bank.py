"""Twin memory banks of objects: the teacher's objects of the newest images, in two views each."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.ops.collectives import all_gather_fields, world_size
from asterism.ops.host import sent
from asterism.ops.neighbours import most_similar_row, reciprocal_lengths
from asterism.ranges import Count

VIEWS = 2


class BankConfig(Config):
    """What is stored, and what a search may return; section 3.2.2."""

    images: Count = 25000  # S; each with a slot for every cluster
    precision: Literal["half", "full"] = "half"
    own_image: Literal["excluded", "allowed"] = "excluded"
    # whether an image may find its own objects of an earlier epoch: easy, uninformative matches; published: allowed


@dataclass(frozen=True)
class StoredObjects:
    """Objects of images as they enter the bank: in each of the two views, aligned."""

    rows: Float[Tensor, "b k v d"]
    valid: Bool[Tensor, "b k"]  # slots that hold an object
    meaning: Int[Tensor, "b k"]  # a number that is equal for equal labels, if the image is labelled
    image: Int[Tensor, " b"]  # index of each image in its source
    keys: Int[Tensor, " b"]  # random key of each image, which determines the order


class ObjectBank(nn.Module):
    """A ring of S images with K slots for objects each, the same on every process.

    Slot (i, k) holds one object as seen in view 1 and in view 2, so the jump from one view's bank to the other's keeps
    the index. Objects are stored unnormalised, with their reciprocal lengths. A search reads valid slots only.
    """

    rows: Float[Tensor, "v s k d"]
    reciprocal_length: Float[Tensor, "v s k"]
    valid: Bool[Tensor, "s k"]
    meaning: Int[Tensor, "s k"]
    image: Int[Tensor, " s"]
    newest: Int[Tensor, ""]  # index of the last image stored; older ones follow it, and new ones are written towards 0

    def __init__(self, config: BankConfig, slots: int, dim: int) -> None:
        super().__init__()
        self.config = config
        images, dtype = config.images, torch.float16 if config.precision == "half" else torch.float32
        self.register_buffer("rows", torch.zeros(VIEWS, images, slots, dim, dtype=dtype))
        self.register_buffer("reciprocal_length", torch.zeros(VIEWS, images, slots))
        self.register_buffer("valid", torch.zeros(images, slots, dtype=torch.bool))
        self.register_buffer("meaning", torch.zeros(images, slots, dtype=torch.int64))
        self.register_buffer("image", torch.full((images,), -1))
        self.register_buffer("newest", torch.tensor(0))
        # Not a buffer: empty between optimiser steps, when checkpoints are written.
        self._pending: list[StoredObjects] = []

    @property
    def images(self) -> int:
        """S"""
        return len(self.image)

    @property
    def filled_share(self) -> Float[Tensor, ""]:
        return (self.image >= 0).float().mean()

    @torch.no_grad()
    def nearest(self, objects: Float[Tensor, "v m d"], image: Int[Tensor, " m"]) -> Int[Tensor, "v m"]:
        """Eq. 2: for each object the index of the most similar slot, over all images, in the bank of its own view.

        −1 if the bank holds no slot that it may find.
        """
        row_image = self.image[:, None].expand_as(self.valid).flatten()
        excludes = self.config.own_image == "excluded"
        return torch.stack(
            [
                most_similar_row(
                    objects[view],
                    self.rows[view].flatten(0, 1),
                    among=self.valid.flatten(),
                    reciprocal_length=self.reciprocal_length[view].flatten(),
                    query_group=image if excludes else None,
                    row_group=row_image if excludes else None,
                )
                for view in range(VIEWS)
            ]
        )

    def take(self, view: int, slots: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
        """The objects of these slots as seen in a view, in single precision."""
        return self.rows[view].flatten(0, 1)[slots].float()

    @torch.no_grad()
    def collect(self, objects: StoredObjects) -> None:
        """Keep the objects of a micro-batch until `store`."""
        keys = sent(objects.keys, self.rows.device)
        self._pending.append(replace(objects, rows=objects.rows.to(self.rows.dtype), keys=keys))
        arriving = world_size() * sum(len(part.image) for part in self._pending)
        if arriving > self.images:
            raise UserError(
                f"method.bank.images = {self.images} is smaller than a batch of {arriving} or more images; raise it to "
                "several batches, or lower trainer.batch_size"
            )

    @torch.no_grad()
    def store(self) -> None:
        """Push the objects all processes collected since the last call.

        Images are stored in the order of their keys, so the bank does not depend on how a batch was divided.
        """
        names = [each.name for each in fields(StoredObjects)]
        own = [torch.cat([getattr(part, name) for part in self._pending]) for name in names]
        new = StoredObjects(*all_gather_fields(*own))
        order = new.keys.argsort(stable=True)
        self._pending = []
        self.push(StoredObjects(*(getattr(new, name)[order] for name in names)))

    @torch.no_grad()
    def push(self, new: StoredObjects) -> None:
        """Overwrite the oldest images; the first of the new ones becomes the newest."""
        count = len(new.image)
        assert count <= self.images, "more images than the bank holds"
        self.newest.copy_((self.newest - count) % self.images)
        places = (self.newest + torch.arange(count, device=new.image.device)) % self.images
        self.rows[:, places] = new.rows.permute(2, 0, 1, 3).to(self.rows.dtype)
        self.reciprocal_length[:, places] = reciprocal_lengths(self.rows[:, places])
        self.valid[places] = new.valid
        self.meaning[places] = new.meaning
        self.image[places] = new.image
