"""Predictions for images, folders and videos: tables, drawings, and what is refused."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import asterism
from asterism.cli import app
from asterism.errors import UserError
from asterism.finetuning.run import FinetunedRun
from asterism.tools import predict
from tests.finetuning.tiny import COLOURS, coloured_folder, finetune, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinetunedRun:
    folder = tmp_path_factory.mktemp("predict")
    changes = ["trainer.steps=40", "optim.lr=3e-3", "optim.lr_scaling=none", "task.mixing=null"]
    return finetune(tiny(coloured_folder(folder / "data"), *changes), folder / "run")


def colour(name: str, path: Path, size: tuple[int, int] = (30, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, COLOURS[name]).save(path)


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))


def test_a_folder_gets_tables_and_a_drawing_of_every_image(run: FinetunedRun, tmp_path: Path) -> None:
    """Batches of two, images of several sizes, folders in folders, names that differ in little, one broken file."""
    expected = {"a/b.png": "red", "a-b.png": "blue", "c.jpg": "green", "c.png": "red", "d.png": "blue"}
    for number, (name, kind) in enumerate(expected.items()):
        colour(kind, tmp_path / "new" / name, (30 + 7 * number, 50 - 5 * number))
    (tmp_path / "new/broken.png").write_bytes(b"no image")
    made = asterism.predict(run, tmp_path / "new", tmp_path / "out", batch_size=2)
    assert made.images == 5
    assert [bad.key for bad in made.skipped] == ["broken.png"]
    rows = table(tmp_path / "out")
    assert {row["image"]: row["label"] for row in rows} == expected
    described = json.loads((tmp_path / "out/predictions.json").read_text())
    assert [entry["image"] for entry in described] == [row["image"] for row in rows]
    for entry in described:
        assert sum(each["score"] for each in entry["best"]) == pytest.approx(1, abs=1e-4)
        assert entry["best"][0] == {"label": entry["label"], "score": entry["score"]}
    drawings = tmp_path / "out/drawings"
    found = {path.relative_to(drawings).as_posix() for path in drawings.rglob("*.jpg")}
    assert found == {"a/b.jpg", "a-b.jpg", "c.jpg.jpg", "c.png.jpg", "d.jpg"}
    with Image.open(drawings / "a/b.jpg") as picture:
        middle = picture.convert("RGB").getpixel((picture.width // 2, picture.height // 3))
    assert np.allclose(middle, COLOURS["red"], atol=12)


def test_one_image_and_the_frames_of_a_video(run: FinetunedRun, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    colour("green", tmp_path / "one.png")
    assert asterism.predict(run, tmp_path / "one.png", tmp_path / "single").images == 1
    with av.open(str(tmp_path / "film.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height = 64, 48
        for name in ("red", "red", "blue"):
            pixels = np.full((48, 64, 3), COLOURS[name], dtype=np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    asterism.predict(run, tmp_path / "film.mp4", tmp_path / "frames")
    rows = table(tmp_path / "frames")
    assert [(row["image"], row["label"]) for row in rows] == [("000000", "red"), ("000001", "red"), ("000002", "blue")]


def test_python_and_command_line_say_the_same(run: FinetunedRun, tmp_path: Path) -> None:
    colour("blue", tmp_path / "new/x.png")
    result = CliRunner().invoke(
        app, ["predict", str(run.path), "--images", str(tmp_path / "new"), "-o", str(tmp_path / "o")]
    )
    assert result.exit_code == 0, result.output
    row = table(tmp_path / "o")[0]
    found = asterism.load(run).predict(tmp_path / "new/x.png")
    assert (row["label"], float(row["score"])) == (found.label, pytest.approx(found.score, abs=1e-5))
    again = CliRunner().invoke(
        app, ["predict", str(run.path), "--images", str(tmp_path / "new"), "-o", str(tmp_path / "o")]
    )
    assert again.exit_code == 2


def test_mistakes_are_named_and_nothing_is_written(run: FinetunedRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/x.png").write_bytes(b"no image")
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    pretrained = tmp_path / "pretrained"
    pretrained.mkdir()
    (pretrained / "config.yaml").write_text("method: {name: dino}\n")
    for model, images, message in [
        (run, tmp_path / "none", "no such file or folder"),
        (run, tmp_path / "empty", "no images in"),
        (run, tmp_path / "bad", "none of the images .* can be read; the first error: x.png"),
        (run, tmp_path / "bad.mp4", "bad.mp4 is not a video|needs the"),
        (pretrained, tmp_path / "bad", "is a run of `asterism pretrain`, which predicts nothing yet; fine-tune it"),
        (tmp_path / "gone", tmp_path / "bad", "no such file or folder: .*gone"),
        (tmp_path / "empty", tmp_path / "bad", r"has no model\.safetensors of a fine-tuned model"),
    ]:
        with pytest.raises(UserError, match=message):
            asterism.predict(model, images, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_large_images_make_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_MOST_VALUES", 3 * 100)
    sides = [5, 5, 20, 5, 5, 5, 5]
    pictures = [(str(side), str(side), torch.zeros(3, side, side, dtype=torch.uint8)) for side in sides]
    batches = list(predict._batches(pictures, 3))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    monkeypatch.setattr(predict, "_MOST_VALUES", 3 * 40)
    batches = list(predict._batches(pictures, 3))
    assert [[key for key, _, _ in batch] for batch in batches] == [["5", "5"], ["20"], ["5", "5"], ["5", "5"]]
