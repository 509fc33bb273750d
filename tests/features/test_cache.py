import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from asterism.data import open_source
from asterism.errors import UserError
from asterism.features import cache
from asterism.features import extract as extraction
from asterism.features.cache import features_folder, stored
from asterism.features.extract import extract_pooled
from asterism.features.rows import Block, RowFolder
from asterism.images.bad_image import BadImage
from tests import distributed
from tests.evals.samples import small_encoder, write_colours


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "WORTH_KEEPING", 1)
    monkeypatch.setattr(extraction, "WORTH_KEEPING", 1)


class Producer:
    """Image i has i rows of the number i; image 3 cannot be read; raises an error at `until`."""

    def __init__(self, until: int = 7) -> None:
        self.until = until
        self.asked: list[tuple[int, int]] = []

    def __call__(self, first: int, end: int) -> Iterator[Block]:
        self.asked.append((first, end))
        for image in range(first, end):
            if image == self.until:
                raise KeyboardInterrupt
            if image == 3:
                yield Block([], {}, [], [BadImage("3", "broken")])
            else:
                yield Block([str(image)], {"rows": [torch.full((image, 2), image, dtype=torch.float16)]}, [image])


def test_ragged_rows_are_read_back() -> None:
    found = stored({"a": 1}, 7, Producer())
    assert found.keys == ["0", "1", "2", "4", "5", "6"]
    assert found.labels.tolist() == [0, 1, 2, 4, 5, 6]
    assert [str(bad) for bad in found.unreadable] == ["3: broken"]
    for place, image in enumerate([0, 1, 2, 4, 5, 6]):
        assert found.of("rows", place).tolist() == [[image, image]] * image


def test_work_resumes_where_it_stopped_and_is_done_once() -> None:
    broken = Producer(until=5)
    with pytest.raises(KeyboardInterrupt):
        stored({"a": 1}, 7, broken)
    (folder,) = features_folder().glob("*/0")
    with (folder / "rows").open("ab") as file:
        file.write(b"half a row")  # as after a kill
    with (folder / "progress.jsonl").open("ab") as file:
        file.write(b'{"keys": ["5"')
    second, third = Producer(), Producer()
    again = stored({"a": 1}, 7, second)
    assert second.asked == [(5, 7)]
    assert stored({"a": 1}, 7, third).arrays["rows"].equal(again.arrays["rows"])
    assert third.asked == []
    assert again.arrays["rows"][:, 0].tolist() == [1] + [2] * 2 + [4] * 4 + [5] * 5 + [6] * 6


def test_one_process_completes_the_parts_of_several() -> None:
    """After an interruption of several processes: parts with gaps between them, one already merged."""
    expected = stored({"a": 1}, 7, Producer())
    (folder,) = features_folder().iterdir()
    whole = RowFolder(folder / "0")
    assert whole.end == 7
    shutil.rmtree(folder / "0")
    for first, end in ((0, 2), (1, 2), (4, 5)):
        RowFolder(folder / str(first)).grow(Producer()(first, end))
    producer = Producer()
    found = stored({"a": 1}, 7, producer)
    assert producer.asked == [(2, 4), (5, 7)]
    assert found.keys == expected.keys
    assert [str(bad) for bad in found.unreadable] == ["3: broken"]
    assert found.arrays["rows"].equal(expected.arrays["rows"])
    assert found.first["rows"].equal(expected.first["rows"])
    assert [file.name for file in folder.iterdir() if file.is_dir()] == ["0"]


@pytest.mark.slow
def test_two_processes_write_the_same_as_one(tmp_path: Path) -> None:
    data = write_colours(tmp_path / "data", 5)
    (data / "green" / "001.png").write_bytes(b"not an image")
    alone = _extract_in(tmp_path / "alone", data)
    both = distributed.run(_extract_in, tmp_path / "both", data)
    assert both[0] == both[1] == alone
    files = [
        {file.name: file.read_bytes() for file in (tmp_path / name).glob("asterism/features/*/0/*")}
        for name in ("alone", "both")
    ]
    assert set(files[0]) == {"vectors", "progress.jsonl"}
    assert files[0] == files[1]


@pytest.mark.slow
def test_an_error_in_one_process_is_raised_in_all(tmp_path: Path) -> None:
    messages = distributed.run(_failing_on_the_second, tmp_path)
    assert messages == ["image 5 has no mask"] * 2


def _extract_in(home: Path, data: Path) -> tuple[list[list[float]], list[int], list[str], list[str]]:
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(home)
    cache.WORTH_KEEPING = extraction.WORTH_KEEPING = 1
    try:
        found = extract_pooled(
            small_encoder(), open_source(str(data)), "cls", resize=18, batch_size=2, workers=0, layer="cls"
        )
    finally:
        os.environ["XDG_CACHE_HOME"] = before or str(home)
    return found.features.tolist(), found.labels.tolist(), found.keys, [str(bad) for bad in found.unreadable]


def _failing_on_the_second(home: Path) -> str:
    os.environ["XDG_CACHE_HOME"] = str(home)
    cache.WORTH_KEEPING = 1

    def produce(first: int, end: int) -> Iterator[Block]:
        for image in range(first, end):
            if image == 5:
                raise UserError("image 5 has no mask")
            yield Block([str(image)], {"rows": [torch.zeros(1, 2)]})

    try:
        stored({"a": 1}, 7, produce)
    except UserError as error:
        return str(error)
    return "no error"


def test_another_identity_is_computed_separately() -> None:
    stored({"a": 1}, 7, Producer())
    other = Producer()
    stored({"a": 2}, 7, other)
    assert other.asked == [(0, 7)]


def test_the_least_recently_used_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    stored({"a": 1}, 7, Producer())
    (old,) = features_folder().iterdir()
    os.utime(old, (0, 0))
    monkeypatch.setenv("ASTERISM_FEATURES_GB", "0")
    stored({"a": 2}, 7, Producer())
    assert not old.exists()


def test_features_are_extracted_once_per_weights_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, folder = small_encoder(), write_colours(tmp_path / "data", 2)
    passes = []
    monkeypatch.setattr(type(encoder), "encode_cls", _counting(type(encoder).encode_cls, passes))

    def run(layer: str = "cls", resize: int = 18) -> torch.Tensor:
        source = open_source(str(folder))
        found = extract_pooled(encoder, source, "cls", resize=resize, batch_size=6, layer=layer)
        return found.features.clone()

    first = run()
    assert run().equal(first)
    assert len(passes) == 1
    run(layer="patches")
    run(resize=20)
    assert len(passes) == 3
    write_colours(folder, 2, seed=9)  # other images under the same names
    assert not run().equal(first)
    assert len(passes) == 4
    with torch.no_grad():
        next(encoder.parameters()).add_(1)
    run()
    assert len(passes) == 5


def _counting(encode, passes):
    def counted(self, images):
        passes.append(len(images))
        return encode(self, images)

    return counted
