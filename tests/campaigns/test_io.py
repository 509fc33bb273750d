"""A few calls of the file system that fail, kills and power losses; `make campaign CAMPAIGN=io` tries them all."""

import random
from pathlib import Path

import pytest

from tests.campaigns import calls, io
from tests.campaigns.calls import LOSSES, Call, after_power_loss
from tests.campaigns.campaign import Case, run_case

pytestmark = pytest.mark.skipif(calls.library() is None, reason="the library that fails calls needs a C compiler")
_QUICK, _SLOW = "search png", ("pretrain", "embed parquet")


def _end_well(cases: list[Case]) -> None:
    for case in cases:
        verdict = run_case(case)
        assert verdict.passed, f"{case.cause}: {case.name}: {verdict.kind}: {verdict.detail}"


@pytest.mark.parametrize("name", [_QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW)])
def test_some_calls_of_a_command(name: str) -> None:
    by_cause: dict[str, list[Case]] = {}
    for case in io.one(name, seed=0):
        by_cause.setdefault(case.cause, []).append(case)
    choice = random.Random(0)
    _end_well([choice.choice(cases) for cases in by_cause.values()])


def test_the_last_close_changes_nothing_that_was_done() -> None:
    recorded = io.record(_QUICK)
    closes = [number for number, call in enumerate(recorded.calls) if call.kind == "close" and "-tmp" in call.path]
    _end_well([io.failing(recorded, closes[-1], calls.ONCE)])


@pytest.mark.parametrize(
    ("done", "strict", "contents"),
    [
        ("", {"a": b"old"}, {"a": b"old"}),
        ("create b, write b", {"a": b"old"}, {"a": b"old", "b": b""}),
        ("create b, write b, fsync b", {"a": b"old"}, {"a": b"old", "b": b"new"}),
        ("create b, write b, fsync b, fsync .", {"a": b"old", "b": b"new"}, {"a": b"old", "b": b"new"}),
        ("create b, write b, fsync b, rename b a", {"a": b"old"}, {"a": b"new"}),
        ("create b, write b, rename b a, fsync .", {"a": b""}, {"a": b""}),  # the name without the content
        ("write a", {"a": b"old"}, {"a": b"old"}),
        ("remove a", {"a": b"old"}, {}),
        ("mkdir c, create c/d, fsync .", {"a": b"old", "c": None}, {"a": b"old", "c": None, "c/d": b""}),
    ],
)
def test_what_a_power_loss_leaves(done: str, strict: object, contents: object, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "a").write_text("old")
    made = [
        Call(kind, True, path, other, 0, b"new" if kind == "write" else b"")
        for kind, path, other in ((*words.split(), "")[:3] for words in done.split(", ") if words)
    ]
    for number, expected in ((1, strict), (2, contents)):
        place = tmp_path / str(number)
        place.mkdir()
        after_power_loss(tmp_path / "before", made, place, LOSSES[number], "")
        found = {
            str(path.relative_to(place)): None if path.is_dir() else path.read_bytes() for path in place.rglob("*")
        }
        assert found == expected
