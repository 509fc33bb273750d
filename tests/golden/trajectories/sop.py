"""Training steps of sthalles/sop."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from asterism.methods.sop import Draws, Sop, SopConfig
from asterism.nn.prototype_memory import Anchors, PatchPrototypesConfig, PrototypesConfig
from asterism.ops.neighbours import nearest_rows
from asterism.ops.prototypes import supports_outside_anchors
from asterism.types import Progress
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.memories import compared, fill, final_memory, run
from tests.golden.trajectories.steps import Step
from tests.golden.trajectories.teacher_and_student import Recorder, backbone_config
from tests.golden.vectors import Vectors, read

FILES = "sop*.npz"


def replay(path: Path) -> Iterator[Compared]:
    vectors = read(path)
    params = vectors.params
    method = Sop(config(vectors), backbone_config(params))
    assert method.images is not None
    assert method.patches is not None
    images, patches = method.images.memory, method.patches.memory
    fill(images, vectors["init_class_memory"], params["start_pointer"])
    fill(patches, vectors["init_patch_memory"], params["start_pointer"])

    found: list[np.ndarray] = []  # neighbours of every drawn anchor; the loss uses some of them

    def draws(progress: Progress) -> Draws:
        step = progress.step
        drawn = vectors["in_class_permutation"][step][:, : params["class_anchors"]]
        choice = _choices(vectors, step)
        for rows in drawn:
            supports = supports_outside_anchors(images.rows, rows, params["class_experts"] - 1, nearest_rows)
            found.append(np.sort(supports.index[:, :-1].numpy(), axis=-1))
        patch_anchors = vectors["in_patch_permutation"][step][:, : params["patch_anchors"]]
        return Draws(
            masks=list(vectors["in_masks"][step].flatten(-2)),
            images=[Anchors(rows, rows[kept]) for rows, kept in zip(drawn, choice, strict=True)],
            patches=[Anchors(rows, rows) for rows in patch_anchors],
            stored_patch=vectors["in_patch_pick"][step][-params["batch_size"] :],
        )

    def observe(record: Recorder, step: Step) -> None:
        for term in ("cls", "patch"):
            record.add(f"out_loss_{term}", step.losses.terms[term])
        record.add("out_class_pointer", images.pointer)
        record.add("out_patch_pointer", patches.pointer)

    record = run(vectors, method, draws, observe)
    yield from compared(record, method)
    theirs = np.sort(vectors["out_class_neighbours"].numpy(), axis=-1)
    yield Compared("integers/out_class_neighbours", np.stack(found).reshape(theirs.shape), theirs, 0.0)
    yield final_memory(vectors, "final_class_memory", images)
    yield final_memory(vectors, "final_patch_memory", patches)


def _choices(vectors: Vectors, step: int) -> list[Tensor]:
    """Indices of the kept anchors of each task: all of them if the file does not choose."""
    if "in_class_anchor_choice" in vectors.arrays:
        return list(vectors["in_class_anchor_choice"][step])
    count = vectors.params["class_anchors"]
    return [vectors["in_class_permutation"].new_tensor(range(count))] * vectors.params["class_tasks"]


def config(vectors: Vectors) -> SopConfig:
    params = vectors.params
    kept = len(_choices(vectors, 0)[0])
    return SopConfig(
        images=PrototypesConfig(
            memory=params["class_memory_size"],
            count=params["class_anchors"],
            kept=kept / params["class_anchors"],
            neighbours=params["class_experts"] - 1,
            tasks=params["class_tasks"],
            smoothing=params["smoothing"],
        ),
        patches=PatchPrototypesConfig(
            memory=params["patch_memory_size"],
            count=params["patch_anchors"],
            neighbours=params["patch_experts"] - 1,
            tasks=params["patch_tasks"],
            smoothing=params["smoothing"],
        ),
        hidden_dim=params["head_hidden_dim"],
        embedding_dim=params["head_bottleneck_dim"],
        momentum=params["momentum_teacher"],
        student_temp=params["student_temp"],
        warmup_teacher_temp=params["warmup_teacher_temp"],
        teacher_temp=params["teacher_temp"],
        warmup_teacher_temp_epochs=params["warmup_teacher_temp_epochs"],
        local_views=params["local_crops_number"],
        local_size=params["local_size"],
    )
