import json
from pathlib import Path

import pytest

from asterism.data.bad_images import BadImageLog
from asterism.errors import UserError
from asterism.images.bad_image import BadImage


def bad(*numbers: int, reason: str = "truncated") -> list[BadImage]:
    return [BadImage(f"{number}.jpg", reason) for number in numbers]


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def test_every_bad_image_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    log = BadImageLog(path, max_share=0.5, total=100)
    log.record([])
    assert not path.exists()
    log.record(bad(1, 2))
    log.record(bad(2, 3, 3))
    log.record(bad(1))
    assert lines(path) == [{"key": f"{n}.jpg", "reason": "truncated"} for n in (1, 2, 3)]
    assert len(log) == 3


def test_a_resumed_run_continues_its_file(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    BadImageLog(path, max_share=0.5, total=100).record(bad(1, 2))
    log = BadImageLog(path, max_share=0.5, total=100)
    assert len(log) == 2
    log.record(bad(2, 3))
    assert [line["key"] for line in lines(path)] == ["1.jpg", "2.jpg", "3.jpg"]


def test_only_a_truncated_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    BadImageLog(path, max_share=0.5, total=100).record(bad(1, 2))
    path.write_bytes(path.read_bytes()[:-10])
    log = BadImageLog(path, max_share=0.5, total=100)
    assert len(log) == 1
    log.record(bad(2))
    again = BadImageLog(path, max_share=0.5, total=100)
    assert len(again) == 2


def test_several_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    one, two = (BadImageLog(path, max_share=0.03, total=100) for _ in range(2))
    one.record(bad(1, 2))
    two.record(bad(2, 3))
    assert [line["key"] for line in lines(path)] == ["1.jpg", "2.jpg", "3.jpg"]
    with pytest.raises(UserError, match="4 of 100"):
        one.record(bad(4))


def test_too_many(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    log = BadImageLog(path, max_share=0.05, total=40)
    log.record(bad(1, 2))  # exactly the share
    log.record(bad(1, 2))
    with pytest.raises(UserError) as caught:
        log.record(bad(3, reason="the file is empty"))
    message = str(caught.value)
    parts = ("3 of 40", "7.5%", "data.max_bad_share = 0.05", str(path), "truncated", "1.jpg")
    assert all(part in message for part in parts)
    assert len(lines(path)) == 3


def test_the_share_is_of_the_images_seen(tmp_path: Path) -> None:
    def stops(count: int, seen: int, total: int) -> bool:
        log = BadImageLog(tmp_path / f"{count}-{seen}-{total}.jsonl", max_share=0.05, total=total)
        try:
            log.record(bad(*range(count)), seen)
        except UserError:
            return True
        return False

    assert not stops(40, 64, 1_000_000)  # too early to judge: counts as 40 of 1000
    assert stops(51, 64, 1_000_000)
    assert not stops(51, 2000, 1_000_000)
    assert stops(101, 2000, 1_000_000)
    assert not stops(51, 1_000_000, 1100)  # many epochs over few images: of the whole data set
    assert stops(56, 1_000_000, 1100)
    assert stops(1, 64, 10)


def test_a_planted_link_is_not_written_through(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("no end of line")
    (tmp_path / "bad_images.jsonl").symlink_to(precious)
    with pytest.raises(UserError, match="it is a link"):
        BadImageLog(tmp_path / "bad_images.jsonl", 0.1, 10)
    assert precious.read_text() == "no end of line"
