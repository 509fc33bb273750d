"""Training steps of sthalles/MaSSL."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from asterism.methods.sop import Draws, Sop, SopConfig, spread
from asterism.nn.prototype_memory import Anchors, PrototypesConfig
from asterism.types import Progress
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.memories import compared, fill, final_memory, run
from tests.golden.trajectories.steps import Step
from tests.golden.trajectories.teacher_and_student import Recorder, backbone_config
from tests.golden.vectors import read

FILES = "massl*.npz"


def replay(path: Path) -> Iterator[Compared]:
    vectors = read(path)
    params = vectors.params
    images = PrototypesConfig(
        memory=params["memory_size"], count=params["partition_size"], neighbours=0, anchors="partition"
    )
    config = SopConfig(
        images=images,
        patches=None,
        koleo_weight=params["koleo_loss_weight"] or None,
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
    method = Sop(config, backbone_config(params))
    assert method.images is not None
    memory = method.images.memory
    fill(memory, vectors["init_memory"], params["start_pointer"])

    embeddings: list[Tensor] = []
    method.head.register_forward_hook(lambda _, __, out: embeddings.append(out.detach()))

    def draws(progress: Progress) -> Draws:
        order = vectors["in_permutation"][progress.step]
        return Draws((), [Anchors(order, order)], (), torch.zeros(params["batch_size"], dtype=torch.int64))

    def observe(record: Recorder, step: Step) -> None:
        record.add("out_loss_ce", step.losses.terms["cls"])
        record.add("out_loss_koleo", spread(embeddings.pop()[:2]))  # stored even where its weight is 0
        record.add("out_pointer", memory.pointer)

    record = run(vectors, method, draws, observe)
    yield from compared(record, method)
    yield final_memory(vectors, "final_memory", memory)
