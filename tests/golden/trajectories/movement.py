"""The comparison for DINO's and iBOT's files: errors of tensors are relative to their movement in training."""

from collections.abc import Iterator

import numpy as np

from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.teacher_and_student import SCHEDULE, Networks, Recorder, finals, key_part
from tests.golden.vectors import Vectors

FLOAT64 = 1e-9  # README: tolerance of a float64 run against out64_…
_STILL = 1e-6  # README: of teacher tensors that mathematically do not move


def record_snapshots(record: Recorder, networks: Networks) -> None:
    for key, find in (("snapshots", networks.student), ("teacher_snapshots", networks.teacher)):
        for series, name in record.vectors.params[key].items():
            record.add(series, find(name))


def schedules(record: Recorder, *names: str) -> Iterator[Compared]:
    for name in ("out_lr", "out_weight_decay", "out_momentum", *names):
        yield record.compared(name, SCHEDULE, group="schedules")


def series(record: Recorder, **tolerances: str) -> Iterator[Compared]:
    """Arrays with the keys of their tolerances."""
    for name, key in tolerances.items():
        yield record.compared(name, record.vectors.params["tolerance"][key], relative=True, group=key)


def in_float64(record: Recorder) -> Iterator[Compared]:
    """All quantities of the official float64 run in the file."""
    for stored in record.vectors.arrays:
        if stored.startswith("out64_"):
            theirs = record.vectors[stored].numpy()
            ours = record.ours(stored.replace("out64_", "out_"))
            scale = np.abs(theirs).max()
            yield Compared(f"float64/{stored}", ours / scale, theirs / scale, FLOAT64)


def snapshots(record: Recorder) -> Iterator[Compared]:
    """Distances at every step, in units of the movement to the end."""
    params = record.vectors.params
    for key, kind, last in (("snapshots", "student", "final__"), ("teacher_snapshots", "teacher", "final_teacher__")):
        for name, parameter in params[key].items():
            own = f"init_{kind}__{parameter}"
            first = own if own in record.vectors.arrays else f"init__{parameter}"
            final, start = (record.vectors[each].numpy() for each in (last + parameter, first))
            off = (record.ours(name) - record.vectors[name].numpy()).reshape(len(record.ours(name)), -1)
            share = np.linalg.norm(off, axis=1) / np.linalg.norm(final - start)
            yield Compared(f"{kind} snapshots/{name}", share, np.zeros_like(share), params["tolerance"][kind])


def final_networks(vectors: Vectors, networks: Networks) -> Iterator[Compared]:
    fixed = set(vectors.params["not_optimised_params"])
    for kind, name, ours, theirs, start in finals(vectors, networks):
        if name in fixed:
            yield Compared(f"fixed {kind}/{name}", ours, theirs, 0.0 if kind == "student" else _STILL)
            continue
        width = theirs.shape[-1] // 3
        off, moved = (
            np.linalg.norm(key_part(name, difference, width, 2 * width))
            for difference in (ours - theirs, theirs - start)
        )
        yield Compared(f"{kind}/{name}", np.asarray(off / moved), np.asarray(0.0), vectors.params["tolerance"][kind])


def first_step(vectors: Vectors, record: Recorder, networks: Networks) -> Iterator[Compared]:
    """Raw outputs and gradients of step 0, for which the files state no separate tolerance."""
    tolerance = vectors.params["tolerance"]
    for name in vectors.arrays:
        if name.startswith("out_step0_grad__"):
            parameter = name.removeprefix("out_step0_grad__")
            width = vectors[name].shape[-1] // 3
            ours, theirs = (
                key_part(parameter, array, width, 2 * width) for array in (record.ours(name)[0], vectors[name].numpy())
            )
            scale = np.abs(theirs).max()
            yield Compared(f"step 0 gradients/{parameter}", ours / scale, theirs / scale, tolerance["grad_norm"])
        elif name.startswith("out_step0_"):
            yield record.compared(name, tolerance["loss"], relative=True, group="step 0 outputs")
