"""Encoding by worker processes: the same results, in the same order, and only where it is safe."""

import multiprocessing
import os
import pickle
import resource
import threading
from pathlib import Path

import pytest
import torch

from asterism.data import Source, open_source
from asterism.data.crops import CenterCrops
from asterism.errors import UserError
from asterism.features import encoding
from asterism.features.encoding import Workers, encoded, encoding_processes
from asterism.features.extract import extract_pooled, stream
from asterism.features.rows import Block
from asterism.images.bad_image import BadImage
from asterism.index.write import write_embeddings
from asterism.nn.encoder import Encoder
from asterism.types import Model
from tests.evals.samples import small_encoder, write_colours

forks = pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="this system does not copy processes")


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_WORTH_COPIES", 1)
    monkeypatch.setattr(encoding, "_SHARE", 1)
    monkeypatch.setattr(encoding, "cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def _vectors(encoder: Encoder, source: Source, workers: Workers) -> tuple[torch.Tensor, list[str], list[int]]:
    """The vectors, their keys, and the process that computed each batch."""

    def encode(images: torch.Tensor) -> tuple[torch.Tensor, int]:
        return encoder.encode_cls(images), os.getpid()

    crops = CenterCrops(encoder.image_size, encoder.image_size)
    parts = list(encoded(encoder, source, crops, encode, batch_size=2, workers=workers))
    made = [part.made for part in parts if part.made is not None]
    return torch.cat([rows for rows, _ in made]), [key for part in parts for key in part.keys], [p for _, p in made]


@forks
@pytest.mark.usefixtures("two_processes")
def test_processes_encode_the_same_in_the_same_order(tmp_path: Path) -> None:
    encoder, source = small_encoder(), open_source(str(write_colours(tmp_path, 4)))
    torch.ones(512, 512) @ torch.ones(512, 512)  # threads that the copies do not have
    here, keys, own = _vectors(encoder, source, workers=0)
    there, same_keys, others = _vectors(encoder, source, workers="auto")
    assert set(own) == {os.getpid()}
    assert len(set(others)) == 2
    assert os.getpid() not in others
    assert keys == same_keys == [source[place].key for place in range(len(source))]
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)


@forks
@pytest.mark.usefixtures("two_processes")
def test_unreadable_images_are_reported_by_processes_too(tmp_path: Path) -> None:
    write_colours(tmp_path, 4)
    for name in ("blue/000.png", "blue/001.png", "green/003.png", "red/002.png", "red/003.png"):
        (tmp_path / name).write_bytes(b"not an image")
    encoder, source = small_encoder(), open_source(str(tmp_path))
    found = extract_pooled(encoder, source, "cls", resize=16, batch_size=2)
    expected = extract_pooled(encoder, source, "cls", resize=16, batch_size=2, workers=0)
    torch.testing.assert_close(found.features, expected.features, rtol=1e-5, atol=1e-6)
    assert found.labels.tolist() == expected.labels.tolist() == [0, 0, 1, 1, 1, 2, 2]
    bad = ["blue/000.png", "blue/001.png", "green/003.png", "red/002.png", "red/003.png"]
    assert [each.key for each in found.unreadable] == [each.key for each in expected.unreadable] == bad
    streamed = list(stream(encoder, source, lambda features: features.cls, resize=16, batch_size=2))
    assert [each.key for batch in streamed for each in batch.unreadable] == bad
    assert all(len(batch.features) == len(batch.keys) > 0 for batch in streamed)
    torch.testing.assert_close(torch.cat([batch.features for batch in streamed]), found.features)


@forks
@pytest.mark.usefixtures("two_processes")
def test_an_error_in_a_process_arrives_as_a_sentence(tmp_path: Path) -> None:
    encoder, source = small_encoder(), open_source(str(write_colours(tmp_path, 2)))
    with pytest.raises(UserError, match="no concept tokens"):
        extract_pooled(encoder, source, "sparse", resize=16, batch_size=2)


@forks
@pytest.mark.usefixtures("two_processes")
def test_threads_daemons_and_several_processes_make_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, found = small_encoder(), []
    assert encoding_processes(encoder, "auto", 10_000, 64) == 2
    thread = threading.Thread(target=lambda: found.append(encoding_processes(encoder, "auto", 10_000, 64)))
    thread.start()
    thread.join()
    assert found == [0]
    with monkeypatch.context() as patch:
        patch.setattr(encoding, "world_size", lambda: 2)
        assert encoding_processes(encoder, "auto", 10_000, 64) == 0
    with monkeypatch.context() as patch:
        patch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
        assert encoding_processes(encoder, "auto", 10_000, 64) == 0


@forks
@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize("name", ["photos.parquet", "photos.npz"])
def test_writing_embeddings_keeps_no_files_open(name: str, tmp_path: Path) -> None:
    source = open_source(str(write_colours(tmp_path / "data", 60)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + 60, hard))
    try:
        written = write_embeddings(
            small_encoder(), source, tmp_path / name, Model("small", None), dense=True, batch_size=2
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert written.images == 180


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_a_block_is_received_as_it_was_sent(dtype: torch.dtype) -> None:
    rows = torch.arange(12).view(6, 2).to(dtype)
    block = Block(
        ["a", "b", "c"],
        {"rows": [rows[:1], rows[1:1], rows[1:]], "empty": [rows[:0]], "none": []},
        [1, 0, 2],
        [BadImage("d", "is broken")],
    )
    received = pickle.loads(pickle.dumps(block))
    assert [part.tolist() for part in received.arrays["rows"]] == [rows[:1].tolist(), [], rows[1:].tolist()]
    assert received.arrays["rows"][0].dtype == dtype
    assert received.arrays["empty"][0].shape == (0, 2)
    assert (received.keys, received.labels) == (block.keys, block.labels)
    assert [(bad.key, bad.reason) for bad in received.unreadable] == [("d", "is broken")]
