"""SOP and MaSSL: prototypes, losses and memory against the golden vectors."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from asterism.methods.sop import Temperatures, image_loss, patch_loss
from asterism.nn.memory_bank import Memory
from asterism.ops import prototypes as P
from asterism.ops.neighbours import nearest_rows
from tests.golden.vectors import Vectors, read, relative_error


@pytest.fixture(scope="module")
def probs(golden: Path) -> Vectors:
    return read(golden / "sop" / "probs.npz")


def _check(v: Vectors, prototypes: P.Prototypes, suffix: str, infix: str) -> None:
    p, tolerance = v.params, v.params["tolerance"]
    student = v["in_student"].clone().requires_grad_()
    ours = P.log_probabilities(student.detach(), prototypes, p["student_temp"]).exp()
    targets = P.log_probabilities(v["in_teacher"], prototypes, p["teacher_temp"]).exp()
    assert relative_error(ours, v[f"out_probs{infix}_student"]) <= tolerance
    assert relative_error(targets, v[f"out_probs{infix}_teacher"]) <= tolerance
    loss = _image_loss(v, student, [prototypes])
    loss.backward()
    assert relative_error(loss.detach(), v[f"out_loss{suffix}"]) <= tolerance
    assert student.grad is not None
    assert relative_error(student.grad, v[f"out_grad_student{suffix}"]) <= tolerance


def _image_loss(v: Vectors, student: Tensor, tasks: list[P.Prototypes]) -> Tensor:
    p = v.params
    teacher = v["in_teacher"].unflatten(0, (p["num_teacher_views"], -1))
    views = student.unflatten(0, (p["num_views"], -1))
    return image_loss(teacher, views, iter(tasks), Temperatures(p["teacher_temp"], p["student_temp"]))[0]


def test_supports_outside_the_anchors(probs: Vectors) -> None:
    memory, p = probs["in_memory"].T.contiguous(), probs.params
    found = P.supports_outside_anchors(memory, probs["in_anchor_idx"], p["neighbours"], nearest_rows)
    assert torch.equal(found.index, probs["out_support_idx"])
    assert relative_error(P.member_weights(found, p["smoothing"]), probs["out_weights"]) <= p["tolerance"]
    _check(probs, P.organize(memory, found, "similarity", p["smoothing"]), "", "")


def test_supports_in_the_whole_memory(probs: Vectors) -> None:
    memory, p = probs["in_memory"].T.contiguous(), probs.params
    found = P.supports_in_memory(memory, probs["in_anchor_idx"], p["pseudocode_rows"], nearest_rows)
    assert torch.equal(found.index, probs["out_support_idx_pseudocode"])
    _check(probs, P.organize(memory, found, "constant", p["smoothing"]), "_pseudocode", "_pseudocode")


def test_patches(probs: Vectors) -> None:
    memory, p = probs["in_patch_memory"].T.contiguous(), probs.params
    found = P.supports_outside_anchors(memory, probs["in_patch_anchor_idx"], p["patch_supports"] - 1, nearest_rows)
    prototypes = P.organize(memory, found, "similarity", p["smoothing"])
    student, mask = probs["in_patch_student"].clone().requires_grad_(), probs["in_patch_mask"]
    for rows, temperature, expected in [
        (student.detach(), p["student_temp"], probs["out_patch_probs_student"]),
        (probs["in_patch_teacher"], p["teacher_temp"], probs["out_patch_probs_teacher"]),
    ]:
        ours = P.log_probabilities(rows.flatten(0, 1), prototypes, temperature).exp()
        assert relative_error(ours.view(expected.shape), expected) <= p["tolerance"]
    temperatures = Temperatures(p["teacher_temp"], p["student_temp"])
    loss = patch_loss(probs["in_patch_teacher"][mask], student[mask], mask, iter([prototypes]), temperatures)
    loss.backward()
    assert relative_error(loss.detach(), probs["out_patch_loss"]) <= p["tolerance"]
    assert student.grad is not None
    assert relative_error(student.grad, probs["out_patch_grad_student"]) <= p["tolerance"]


def test_massl(golden: Path) -> None:
    v = read(golden / "sop" / "massl.npz")
    p, memory = v.params, v["in_memory"].T.contiguous()
    blocks = list(P.permuted_blocks(memory, v["in_permutation"], p["partition_size"]))
    assert len(blocks) == p["num_partitions"]
    student = v["in_student"].clone().requires_grad_()
    for number, block in enumerate(blocks):
        log_p = P.log_probabilities(student.detach(), block, p["student_temp"]).unflatten(0, (p["num_views"], -1))
        targets = P.log_probabilities(v["in_teacher"], block, p["teacher_temp"]).exp()
        assert relative_error(log_p, v["out_student_blocks"][:, number]) <= p["tolerance"]
        assert (
            relative_error(targets.unflatten(0, (p["num_teacher_views"], -1)), v["out_teacher_blocks"][:, number])
            <= p["tolerance"]
        )
    loss = _image_loss(v, student, blocks)
    loss.backward()
    assert relative_error(loss.detach(), v["out_loss"]) <= p["tolerance"]
    assert student.grad is not None
    assert relative_error(student.grad, v["out_grad_student"]) <= p["tolerance"]


def test_memory(golden: Path) -> None:
    v = read(golden / "sop" / "memory.npz")
    memory = _memory(v["in_memory"], v.params["start_pointer"])
    for batch, expected, pointer in zip(v["in_batches"], v["out_memory"], v["out_pointer"], strict=True):
        memory.push(batch)
        assert torch.equal(memory.rows.T, expected)
        assert int(memory.pointer) == int(pointer)


def test_massl_memory(golden: Path) -> None:
    v = read(golden / "sop" / "massl.npz")
    memory = _memory(v["in_memory"], 0)
    memory.push(v["in_teacher"].unflatten(0, (v.params["num_teacher_views"], -1))[1])
    assert torch.equal(memory.rows.T, v["out_memory"])
    assert int(memory.pointer) == int(v["out_pointer"])


def _memory(columns: Tensor, pointer: int) -> Memory:
    memory = Memory(columns.shape[1], columns.shape[0])
    memory.rows.copy_(columns.T)
    memory.pointer.fill_(pointer)
    return memory
