"""The judge of the campaigns: every way in which a command can end badly is noticed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.campaigns.campaign import Case, few, in_turns, run_case, table
from tests.campaigns.disks import read_only, small_disk

LIST = ["list", "modles"]  # ends with one sentence and exit code 2


def case(**changes: object) -> Case:
    return Case(**{"name": "a", "cause": "b", "prepare": lambda here: LIST, **changes})  # type: ignore[arg-type]


def crash() -> None:
    raise ZeroDivisionError


def hang() -> None:
    time.sleep(60)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def grow() -> None:
    bytearray(os.urandom(1 << 20) * 400)
    time.sleep(60)


def write_a_file() -> None:
    Path("data/index").write_text("not yours")


def leave_a_temporary_file() -> None:
    Path(os.environ["TMPDIR"], "left").touch()


def be_silent() -> None:
    sys.exit(2)


def with_data(here: Path) -> list[str]:
    (here / "data").mkdir()
    return LIST


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "good"),
        ({"inside": crash}, "traceback"),
        ({"inside": hang, "seconds": 0.3}, "hang"),
        ({"inside": be_killed}, f"killed by signal {signal.SIGBUS:d}"),
        ({"inside": write_a_file, "prepare": with_data}, "files changed"),
        ({"inside": write_a_file, "prepare": with_data, "kept": ["data/*"]}, "good"),
        ({"inside": leave_a_temporary_file}, "temporary files left"),
        ({"inside": be_silent}, "no sentence"),
        ({"prepare": lambda here: ["list", "methods"]}, "exit code 0"),
        ({"prepare": lambda here: ["list", "methods"], "exits": [0]}, "good"),
        ({"check": lambda here, ended: "no"}, "wrong result"),
        pytest.param(
            {"inside": grow, "megabytes": 600},
            "memory",
            marks=pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc"),
        ),
    ],
)
def test_the_judge(changes: dict[str, object], kind: str) -> None:
    verdict = run_case(case(**changes))
    assert verdict.kind == kind, verdict.detail
    assert verdict.passed == (kind == "good")


@pytest.mark.parametrize("disk", [read_only, lambda folder: small_disk(folder, 8)])
def test_disks_fail_and_recover(disk: object) -> None:
    """What is on a disk stays there, and a file of 100 kB does not fit."""

    def prepare(here: Path) -> list[str]:
        (here / "out").mkdir()
        (here / "out" / "old").write_text("old")
        return LIST

    def check(here: Path, ended: object) -> str | None:
        try:
            (here / "out" / "new").write_bytes(bytes(100_000))
        except OSError:
            return None if (here / "out" / "old").read_text() == "old" else "the content is gone"
        return "the file was written"

    verdict = run_case(case(prepare=prepare, around=lambda here: disk(here / "out"), check=check))  # type: ignore[operator]
    assert verdict.passed, verdict.detail


def test_a_choice_is_seeded_and_fair() -> None:
    cases = [case(name=f"{cause}{number}", cause=cause) for cause in "xy" for number in range(9)]
    cases.append(case(name="slow", cause="z", slow=True))
    chosen = few(cases, 0, 2)
    assert [c.cause for c in chosen] == ["x", "x", "y", "y"]
    assert [c.name for c in chosen] == [c.name for c in few(cases, 0, 2)]
    assert len({tuple(c.name for c in few(cases, seed, 2)) for seed in range(9)}) > 1


def test_any_beginning_of_the_turns_is_a_fair_sample() -> None:
    cases = [
        case(name=f"{cause}{number}", cause=cause) for cause, count in (("x", 9), ("y", 3)) for number in range(count)
    ]
    turns = in_turns(cases, 0)
    assert [c.cause for c in turns] == ["x", "y"] * 3 + ["x"] * 6
    assert {c.name for c in turns} == {c.name for c in cases}
    assert turns == in_turns(cases, 0) != in_turns(cases, 1)


def test_the_table_counts_by_cause() -> None:
    verdicts = [run_case(case(cause="x")), run_case(case(cause="x", inside=crash)), run_case(case(cause="y"))]
    assert table(verdicts).splitlines()[2:] == [
        "| x | 2 | 1 | 1 | 1 traceback |",
        "| y | 1 | 1 | 0 |  |",
        "| all | 3 | 2 | 1 | 1 traceback |",
    ]
