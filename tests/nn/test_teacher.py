import copy

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from asterism.nn.teacher import Teacher
from asterism.ops.sharding import whole
from tests.distributed import run


def _student() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    student = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    for parameter in student.parameters():
        nn.init.normal_(parameter, generator=generator)
    return student


def test_it_starts_as_a_copy_that_does_not_learn() -> None:
    student = _student()
    teacher = Teacher(student)
    for own, other in zip(teacher.network.parameters(), student.parameters(), strict=True):
        assert own.equal(other)
        assert own is not other
        assert not own.requires_grad
        assert other.requires_grad


def test_it_stays_in_evaluation_mode() -> None:
    holder = nn.ModuleDict({"teacher": Teacher(_student())})
    holder.train()
    assert not any(module.training for module in holder["teacher"].modules())


def test_parameters_follow_and_buffers_are_copied() -> None:
    student = _student()
    teacher = Teacher(student)
    before = [p.clone() for p in teacher.network.parameters()]
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
        student[1].running_mean.fill_(5.0)
    teacher.update(student, momentum=0.75)
    for old, new in zip(before, teacher.network.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)
    assert teacher.network[1].running_mean.equal(torch.full((4,), 5.0))


def test_momentum_zero_copies_exactly_and_one_changes_nothing() -> None:
    student, other = _student(), _student()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 / 3)
    teacher = Teacher(student)
    teacher.update(other, momentum=1.0)
    assert all(a.equal(b) for a, b in zip(teacher.network.parameters(), student.parameters(), strict=True))
    teacher.update(other, momentum=0.0)
    assert all(a.equal(b) for a, b in zip(teacher.network.parameters(), other.parameters(), strict=True))


def _one_higher(student: nn.Module) -> None:
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)


def test_tensors_that_are_replaced_are_followed() -> None:
    """Another type or device gives parameters new memory, and batch statistics too; so does loading by assignment."""
    student = _student()
    teacher = Teacher(student)
    teacher.update(student, momentum=0.5)
    student.double()
    teacher.double()
    _one_higher(student)
    teacher.update(student, momentum=0.0)
    assert all(a.equal(b) for a, b in zip(teacher.network.parameters(), student.parameters(), strict=True))
    student.load_state_dict({name: value + 1 for name, value in student.state_dict().items()}, assign=True)
    teacher.update(student, momentum=0.0)
    for own, other in zip(teacher.network.state_dict().values(), student.state_dict().values(), strict=True):
        assert own.equal(other)


def test_a_copy_follows_its_own_student() -> None:
    pair = _Pair()
    pair.teacher.update(pair.student, momentum=0.5)
    other = copy.deepcopy(pair)
    _one_higher(other.student)
    other.teacher.update(other.student, momentum=0.0)
    for own, expected in zip(other.teacher.network.parameters(), other.student.parameters(), strict=True):
        assert own.equal(expected)
    for own, expected in zip(pair.teacher.network.parameters(), pair.student.parameters(), strict=True):
        assert own.equal(expected)


class _Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = _student()
        self.teacher = Teacher(self.student)

    def forward(self, x: Tensor) -> Tensor:
        return (self.student(x) - self.teacher(x)).square().sum()


def _sharded_update() -> list[Tensor]:
    """The first update comes before sharding, as after loading a backbone."""
    pair = _Pair()
    pair.teacher.update(pair.student, momentum=0.0)
    fully_shard(pair, mesh=init_device_mesh("cpu", (2,)))
    pair(torch.arange(6.0).reshape(2, 3)).backward()
    _one_higher(pair.student)
    pair.teacher.update(pair.student, momentum=0.75)
    return [whole(p).clone() for p in pair.teacher.parameters()]


def test_sharded_parameters_follow_in_the_same_way() -> None:
    expected = [p.detach() + 0.25 for p in _student().parameters()]
    for values in run(_sharded_update):
        torch.testing.assert_close(values, expected)
