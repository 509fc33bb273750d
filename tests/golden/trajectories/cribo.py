"""Training steps of tileb1/CrIBo."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.methods.cribo import Cribo, CriboConfig, Objects
from asterism.nn.object_bank import ObjectBank, StoredObjects
from asterism.ops.geometry import geometry_from_rows
from asterism.train.recipe import load_recipe
from asterism.types import Batch, Progress, Tokens, View
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.steps import Step, train
from tests.golden.trajectories.teacher_and_student import (
    SCHEDULE,
    Networks,
    Recorder,
    backbone_config,
    batch_at,
    finals,
    key_part,
    optim_config,
    progress_of,
)
from tests.golden.vectors import Vectors, read

FILES = "cribo*.npz"
HEADS = {"head.last_layer.": "head.last_layers.image.", "head.last_layer_c.": "head.last_layers.objects."}
_PLACES = 0.01  # pixels, README of the cluster methods: closed form against the official coordinate map
_FAMILIES = ("out_param", "out_teacher_param", "out_loss", "out_grad_norm", "center", "bank")


def replay(path: Path) -> Iterator[Compared]:
    vectors = read(path)
    params = vectors.params
    method = _Observed(vectors)
    networks, record = Networks(method, HEADS), Recorder(vectors)
    assert not networks.unloaded(vectors)
    networks.load(vectors)
    method.load_memories()
    steps = train(
        method,
        optim_config(params, "adam_betas"),
        params["steps"],
        progress_of(params),
        lambda progress: method.loss(method.batch(progress), progress),
        params["batch_size"],
    )
    for step in steps:
        record.schedules(step, method)
        record.gradients(step, networks)
        method.record(record, step)
        for short, name in params["snapshots"].items():
            record.add(f"out_param_{short}", networks.student(name))
            record.add(f"out_teacher_param_{short}", networks.teacher(name))
    method.record_final(record)
    yield from _compared(record)
    start, stop = params["excluded"]["attn.qkv.bias"]
    for kind, name, ours, theirs, _ in finals(vectors, networks):
        group = "final" if kind == "student" else "final_teacher"
        arrays = [key_part(name, array, start, stop) for array in (ours, theirs)]
        yield Compared(f"{group}/{name}", *arrays, params["tolerance"][group])
    yield Compared("places", np.stack(method.places), vectors["in_positions"].numpy(), _PLACES)


class _Observed(Cribo):
    """CrIBo with the file's settings and draws, which records its results."""

    def __init__(self, vectors: Vectors) -> None:
        super().__init__(_config(vectors.params), backbone_config(vectors.params))
        self.vectors = vectors
        self.step = 0
        self.places: list[np.ndarray] = []
        self.labels: Tensor
        self.neighbours: tuple[Tensor, Tensor]
        self.class_bank = vectors["init_cls_bank"]

    def load_memories(self) -> None:
        vectors, bank = self.vectors, self._bank
        counts = vectors["init_bank_counts"]
        assert vectors.params["normalized_matching"], "our searches use the cosine"
        self.center.value.copy_(vectors["init_center_image"][0])
        self.object_center.value.copy_(vectors["init_center_objects"][0])
        valid = torch.arange(self.config.objects.clusters) < counts[:, None]
        rows = torch.zeros(*valid.shape, 2, self.backbone.dim)
        stored = torch.stack([vectors["init_bank_view1"], vectors["init_bank_view2"]], dim=1)
        rows[valid] = stored[: int(counts.sum())]
        image = -1 - torch.arange(len(counts))  # different from all images of the run
        bank.push(StoredObjects(rows, valid, torch.zeros_like(valid, dtype=torch.int64), image, keys=image))

    @property
    def _bank(self) -> ObjectBank:
        assert self.bank is not None
        return self.bank

    def batch(self, progress: Progress) -> Batch:
        """The stored batch. Images never repeat; keys increase with the index, so the bank keeps the batch's order."""
        self.step, vectors = progress.step, self.vectors
        batch = batch_at(vectors, self.step, torch.float32)
        size = torch.tensor(vectors.params["base_image_size"]).expand(len(batch.index), 2)
        views = []
        for view, crop, flip in zip(
            batch.views, vectors["in_crop"][self.step], vectors["in_flip"][self.step], strict=True
        ):
            rows = torch.cat((crop, size, flip[:, None]), dim=1).float()
            views.append(replace(view, geometry=geometry_from_rows(rows)))
        return replace(batch, views=tuple(views), index=batch.index + self.step * len(batch.index))

    def patch_places(self, views: Sequence[View], z: list[Tokens]) -> Tensor:
        """The stored positions, which differ from ours by less than a hundredth of a pixel."""
        ours = super().patch_places(views, z)
        self.places.append(torch.stack(ours.chunk(2, dim=1)).numpy())
        return torch.cat(list(self.vectors["in_positions"][self.step]), dim=1)

    def first_centroids(self, keys: Tensor, tokens: int, clusters: int) -> Tensor:
        seeds = self.vectors["in_seeds"][self.step]
        assert seeds.shape == (len(keys), clusters)
        return seeds

    def find_objects(self, batch: Batch, z_t: list[Tokens], progress: Progress) -> Tensor:
        self.labels = super().find_objects(batch, z_t, progress)
        classes = torch.stack([F.normalize(view.cls, dim=-1) for view in z_t])
        self.class_bank = torch.cat([classes, self.class_bank], dim=1)[:, : self.class_bank.shape[1]]
        return self.labels

    def find_neighbours(self, bank: ObjectBank, c: Objects) -> tuple[Tensor, Tensor]:
        """Record slots in the file's numbering: the valid ones, those of the newest images first."""
        nn, accepted = super().find_neighbours(bank, c)
        numbers = torch.full((bank.valid.numel(),), -1)
        numbers[self._by_age] = torch.arange(int(bank.valid.sum()))
        self.neighbours = numbers[nn], accepted
        return nn, accepted

    @property
    def _newest_first(self) -> Tensor:
        return (self._bank.newest + torch.arange(self._bank.images)) % self._bank.images

    @property
    def _by_age(self) -> Tensor:
        order, (_, slots) = self._newest_first, self._bank.valid.shape
        return (order[:, None] * slots + torch.arange(slots))[self._bank.valid[order]]

    def record(self, record: Recorder, step: Step) -> None:
        progress, terms = step.progress, step.losses.terms
        record.add("out_loss", step.losses.total)
        for name, term in terms.items():
            record.add(f"out_loss_{name}", term)
        record.add("out_teacher_temp_objects", self.object_softmax(progress).τ_t)
        record.add("out_lambda_pos", self.config.objects.at(progress).position_weight)
        record.add("out_labels", torch.cat(list(self.labels), dim=1))
        bank, images = self._bank, self.labels.shape[1]
        record.add("out_objects_per_image", bank.valid[self._newest_first][:images].sum(dim=1))
        in_use = progress.epoch >= self.config.neighbour_start
        for view in (0, 1):
            for name, found, missing in zip(("idx", "mask"), self.neighbours, (-1, False), strict=True):
                padded = torch.full(self.vectors[f"out_neighbour_{name}1"].shape[1:], missing)
                if in_use:
                    padded[: found.shape[1]] = found[view]
                record.add(f"out_neighbour_{name}{view + 1}", padded)
        record.add("out_center_image", self.center.value[None])
        record.add("out_center_objects", self.object_center.value[None])
        record.add("out_bank_counts", bank.valid[self._newest_first].sum(dim=1))

    def record_final(self, record: Recorder) -> None:
        rows = self._by_age
        for view in (0, 1):
            padded = torch.zeros_like(self.vectors["final_bank_view1"])
            padded[: len(rows)] = self._bank.take(view, rows)
            record.add(f"final_bank_view{view + 1}", padded)
        record.add("final_bank_counts", self._bank.valid[self._newest_first].sum(dim=1))
        record.add("final_cls_bank", self.class_bank)
        record.add("final_center_image", self.center.value[None])
        record.add("final_center_objects", self.object_center.value[None])


def _compared(record: Recorder) -> Iterator[Compared]:
    """Every recorded series with the file's absolute tolerances; the file has no other `out_` or `final_` arrays."""
    vectors = record.vectors
    stored = {name for name in vectors.arrays if name.startswith(("out_", "final_")) and "__" not in name}
    assert set(record.series) == stored, f"not compared: {stored ^ set(record.series)}"
    schedules = ("out_lr", "out_weight_decay", "out_momentum", "out_lambda_pos", "out_teacher_temp")
    for name in sorted(stored):
        if name.startswith(schedules):
            yield record.compared(name, SCHEDULE, group="schedules")
        elif vectors[name].dtype.is_floating_point:
            family = next(family for family in _FAMILIES if family in name)
            tolerance = vectors.params["tolerance"]
            yield record.compared(name, tolerance.get(name, tolerance[_shared(family, tolerance)]), group=family)
        else:
            yield record.compared(name, 0.0, group="decisions")


def _shared(family: str, tolerance: dict[str, float]) -> str:
    return "out_param" if family == "out_teacher_param" and family not in tolerance else family


def _config(params: dict[str, Any]) -> CriboConfig:
    """The recipe of the published run with the file's numbers; the recipe determines how they are used."""
    published = load_recipe("cribo-imagenet-vits16").method
    assert isinstance(published, CriboConfig)
    first, last = params["pos_alpha"][1], params["pos_alpha"][0]  # the code reads them backwards
    objects = {
        "clusters": params["n_tokens"],
        "position_weight": first,
        "final_position_weight": last,
        "rounds": params["n_iter"],
        "sharpness": params["sinkhorn_lambda"],
        "sinkhorn_iterations": params["sinkhorn_iterations"],
        "marginal_offset": params["marginal_offset"],
    }
    changes = {
        "objects": published.objects.model_copy(update=objects),
        "bank": published.bank.model_copy(update={"images": params["queue_size"]}),
        "out_dim": params["out_dim"],
        "object_out_dim": params["out_dim_c"],
        "hidden_dim": params["head_hidden_dim"],
        "bottleneck_dim": params["head_bottleneck_dim"],
        "norm_last_layer": params["norm_last_layer"],
        "freeze_last_layer": params["freeze_last_layer"],
        "momentum": params["momentum_teacher"],
        "center_momentum": params["center_momentum"],
        "object_center_momentum": params["center_momentum_c"],
        "student_temp": params["student_temp_image"],
        "warmup_teacher_temp": params["warmup_teacher_temp"],
        "teacher_temp": params["teacher_temp"],
        "warmup_teacher_temp_epochs": params["warmup_teacher_temp_epochs"],
        "object_student_temp": params["student_temp_c"],
        "object_warmup_teacher_temp": params["warmup_teacher_temp_c"],
        "object_teacher_temp": params["teacher_temp_c"],
    }
    return published.model_copy(update=changes)
