"""The judge of the campaigns: every way in which a command can end badly is noticed."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.campaigns.campaign import Case, run_case
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
