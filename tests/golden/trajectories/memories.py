"""Shared by the replays of MaSSL and SOP: absolute tolerances, and memories whose columns are our rows."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from asterism.methods.sop import Draws, Sop
from asterism.nn.memory_bank import Memory
from asterism.types import Losses, Progress
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.steps import Step, train
from tests.golden.trajectories.teacher_and_student import (
    SCHEDULE,
    Networks,
    Recorder,
    batch_at,
    finals,
    key_part,
    optim_config,
    progress_of,
)
from tests.golden.vectors import Vectors


@torch.no_grad()
def fill(memory: Memory, columns: Tensor, pointer: int) -> None:
    memory.rows.copy_(columns.T)
    memory.pointer.fill_(pointer)


def run(
    vectors: Vectors, method: Sop, draws: Callable[[Progress], Draws], observe: Callable[[Recorder, Step], None]
) -> Recorder:
    """Take the steps of a file; `observe` records quantities that only one of the methods has."""
    params = vectors.params
    networks, record = Networks(method, {}), Recorder(vectors)
    assert not networks.unloaded(vectors)
    networks.load(vectors)

    def loss(progress: Progress) -> Losses:
        return method.losses(batch_at(vectors, progress.step, torch.float32), draws(progress), progress)

    steps = train(
        method, optim_config(params, "adam_betas"), params["steps"], progress_of(params), loss, params["batch_size"]
    )
    for step in steps:
        record.schedules(step, method)
        record.gradients(step, networks)
        record.add("out_loss", step.losses.total)
        clip = params["clip_grad"]
        record.add("out_clipped", sum(bool(clip) and norm + 1e-6 > clip for norm in step.gradient_norms.values()))
        for short, name in params["snapshots"].items():
            record.add(f"out_param_{short}", networks.student(name))
            if f"out_teacher_param_{short}" in vectors.arrays:
                record.add(f"out_teacher_param_{short}", networks.teacher(name))
        observe(record, step)
    return record


def compared(record: Recorder, method: Sop) -> Iterator[Compared]:
    """Every recorded series and the final networks, with the files' absolute tolerances."""
    tolerance = record.vectors.params["tolerance"]
    for name in record.series:
        if name in ("out_lr", "out_weight_decay", "out_momentum", "out_teacher_temp"):
            yield record.compared(name, SCHEDULE, group="schedules")
        elif record.vectors[name].dtype.is_floating_point:
            key = next(key for key in _keys(name) if key in tolerance)
            yield record.compared(name, tolerance[key], group=key)
        else:
            yield record.compared(name, 0.0, group="integers")
    (key_start, key_stop), networks = record.vectors.params["excluded"]["attn.qkv.bias"], Networks(method, {})
    for kind, name, ours, theirs, _ in finals(record.vectors, networks):
        group = "final" if kind == "student" else "final_teacher"
        arrays = [key_part(name, array, key_start, key_stop) for array in (ours, theirs)]
        yield Compared(f"{group}/{name}", *arrays, tolerance[group])


def final_memory(vectors: Vectors, name: str, memory: Memory) -> Compared:
    ours, theirs = memory.rows.T.numpy(), vectors[name].numpy()
    return Compared(f"bank/{name}", np.array(ours), theirs, vectors.params["tolerance"]["bank"])


def _keys(name: str) -> list[str]:
    """Keys of a series' tolerance: its own name, or that of its family."""
    families = ("out_teacher_param", "out_param", "out_loss", "out_grad_norm")
    family = next((each for each in families if name.startswith(each)), name)
    return [name, family, "out_param"] if family == "out_teacher_param" else [name, family]
