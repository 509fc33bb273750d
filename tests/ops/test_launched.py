"""What counts as started by torchrun or by srun, and what does not."""

from __future__ import annotations

import pytest

from asterism.errors import UserError
from asterism.ops.launched import launched

_TORCHRUN = {
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "a", "MASTER_PORT": "29500"},
}
_SRUN = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_JOB_ID": "123456"}


def place(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> tuple[object, ...] | None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = launched()
    if found is None:
        return None
    return found.rank, found.size, found.local_rank, found.per_machine, found.machines, found.address, found.port


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (_TORCHRUN, (3, 4, 1, 2, 2, "a", 29500)),
        (_SRUN | {"SLURM_NODELIST": "gpu[07-08]"}, (5, 8, 1, 4, 2, "gpu07", 18456)),
        (_SRUN | {"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "1"}, (5, 6, 1, 6, 1, "127.0.0.1", 18456)),
        (_SRUN | {"SLURM_NTASKS_PER_NODE": "4", "SLURM_NODELIST": "a,b"}, (5, 8, 1, 4, 2, "a", 18456)),
        (_SRUN | _TORCHRUN, (3, 4, 1, 2, 2, "a", 29500)),  # torchrun inside an allocation
        ({}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, None),  # an allocation, without srun
        (_SRUN | {"SLURM_NTASKS": "1"}, None),
        (_SRUN | {"SLURM_JOB_NAME": "bash"}, None),
    ],
)
def test_place(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[object, ...] | None) -> None:
    assert place(monkeypatch, variables) == expected


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu[07-09,12],login", "gpu07"), ("node[3]-ib,x", "node3-ib"), ("a,b", "a"), ("a", "a")],
)
def test_the_first_machine(monkeypatch: pytest.MonkeyPatch, nodes: str, first: str) -> None:
    found = place(monkeypatch, _SRUN | {"SLURM_STEP_NODELIST": nodes, "SLURM_NODELIST": "other"})
    assert found is not None
    assert found[5] == first


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="WORLD_SIZE = 'two' in the environment must be a number"):
        place(monkeypatch, _TORCHRUN | {"WORLD_SIZE": "two"})
