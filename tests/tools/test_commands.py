"""The tools as commands, as in their help texts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from asterism import cli
from asterism.images.masks import save_mask
from tests.data.clips import frame_and_mask, write_frames
from tests.evals.samples import small_encoder, write_colours


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small_encoder().save("weights.safetensors", step=7)


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, words)


def test_track_and_segment() -> None:
    write_frames(Path("frames"), 2)
    save_mask(frame_and_mask(0)[1], Path("first.png"))
    tracked = call("track", "weights.safetensors", "--video", "frames", "--mask", "first.png", "radius=2")
    assert tracked.exit_code == 0, tracked.output
    assert tracked.stdout.startswith("2 objects in 2 frames: tracked\ntracked/overlay.")
    write_frames(Path("labelled"), 1)
    save_mask(frame_and_mask(0)[1], Path("labelled/00000.png"))
    segmented = call("segment", "weights.safetensors", "--examples", "labelled", "--images", "frames", "k=3")
    assert segmented.exit_code == 0, segmented.output
    assert segmented.stdout == "2 images from 1 examples of 3 classes: segmented\n"


def test_search() -> None:
    write_colours(Path("photos"), 2, size=(16, 16))
    assert call("embed", "weights.safetensors", "--data", "photos", "--out", "photos.npz").exit_code == 0
    found = call("search", "weights.safetensors", "--index", "photos.npz", "-q", "photos/red/001.png", "-n", "2")
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines()[1] == "  1.000  red/001.png"
    assert Path("neighbours.html").is_file()
    again = call("search", "weights.safetensors", "--index", "photos.npz", "-q", "photos/red/001.png")
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
