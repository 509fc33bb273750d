"""Every tutorial runs: its commands and its Python unchanged, on small data, with a small network and a few steps."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from asterism.cli import app
from asterism.data import open_source
from docs.notebooks import TUTORIALS
from tests.packaged_samples import ship

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLOURS = {"green": (30, 190, 60), "red": (210, 40, 30)}

_HERE = ["trainer.accelerator=cpu", "trainer.devices=1", "data.workers=0", "monitor.tensorboard=false"]
_NETWORK = ["backbone.image_size=32", "backbone.patch_size=8", "backbone.dim=32", "backbone.depth=1"]
_FEW = ["trainer.steps=2", "trainer.batch_size=8"]
# What makes the commands of a tutorial small, by their first words.
SMALL: dict[str, list[str]] = {
    "pretrain dino": [*_HERE, *_NETWORK, *_FEW, "method.out_dim=16", "method.hidden_dim=16", "method.bottleneck_dim=8"],
    "pretrain stellar": [
        *[*_HERE, *_NETWORK, *_FEW, "method.tokens=4"],
        *["method.reconstruction.decoder_dim=16", "method.reconstruction.decoder_depth=1"],
        *["method.vocabulary.prototypes=16", "method.class_vocabulary.prototypes=8"],
    ],
    "pretrain ./simsiam.py": [*_HERE, *_NETWORK, *_FEW],
    "pretrain simsiam.yaml": [*_HERE, "trainer.steps=3"],
    "finetune runs/first": [*_HERE, *_FEW, "validation.share=0.25"],
    "evaluate runs/first --data labelled/": ["knn.k=[3]"],
    "evaluate runs/first --data painted/": ["dense-nn.k=3", "dense-nn.shares=[1.0]"],
}
OWN_TESTS = ("adapt.md", "own-loop.md")  # in tests/test_docs.py


def picture(number: int, side: int = 48) -> tuple[Image.Image, Image.Image]:
    """A disc on noise, and its mask; the place depends on the number."""
    noise = np.random.default_rng(number).integers(60, 110, (side, side, 3)).astype(np.uint8)
    image, mask = Image.fromarray(noise), Image.new("L", (side, side))
    x, y = 8 + 5 * (number % 4), 10 + 3 * (number % 5)
    ImageDraw.Draw(image).ellipse((x, y, x + 18, y + 18), fill=list(COLOURS.values())[number % 2])
    ImageDraw.Draw(mask).ellipse((x, y, x + 18, y + 18), fill=1)
    return image, mask


def write_data(folder: Path) -> None:
    """Everything that the tutorials assume."""
    for place, count in (("photos", 16), ("new", 2)):
        (folder / place).mkdir()
        for number in range(1, count + 1):
            picture(number)[0].save(folder / place / f"{number}.png")
    picture(3)[0].save(folder / "a.jpg")
    for label, name in enumerate(COLOURS):
        (folder / "labelled" / name).mkdir(parents=True)
        for number in range(label, 16, 2):
            picture(number)[0].save(folder / "labelled" / name / f"{number}.png")
    for place, count in (("painted", 12), ("painted-test", 2), ("labelled-masks", 5)):
        for kind in ("images", "masks"):
            (folder / place / kind).mkdir(parents=True)
        for number in range(count):
            image, mask = picture(number)
            image.save(folder / place / "images" / f"{number}.png")
            mask.save(folder / place / "masks" / f"{number}.png")
    (folder / "frames").mkdir()
    for number in range(4):
        picture(number)[0].save(folder / "frames" / f"{number:05}.png")
    picture(0)[1].save(folder / "first.png")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that other tutorials start from."""
    folder = tmp_path_factory.mktemp("encoder")
    write_data(folder)
    words = ["pretrain", "dino", "--data", str(folder / "photos"), "--out", str(folder / "first")]
    result = CliRunner().invoke(app, [*words, *SMALL["pretrain dino"]])
    assert result.exit_code == 0, result.output
    return folder / "first"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_data(tmp_path)
    ship(tmp_path / "shipped", monkeypatch)
    with torch.random.fork_rng(devices=[]):
        yield tmp_path


def blocks(place: str) -> list[tuple[str, str, str]]:
    """Kind, title and text of a page's code blocks."""
    return [found.groups(default="") for found in _BLOCK.finditer((DOCS / place).read_text(encoding="utf-8"))]


def commands(text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("asterism ")]


def run_command(words: list[str]) -> None:
    command = " ".join(words)
    more = next((extra for start, extra in SMALL.items() if command.startswith(start)), [])
    result = CliRunner().invoke(app, [*words, *more])
    assert result.exit_code == 0, f"{command}\n{result.output}"


def run_page(place: str) -> None:
    names: dict[str, Any] = {"__name__": "tutorial"}
    for kind, title, text in blocks(place):
        if kind == "bash":
            for words in commands(text):
                run_command(words[1:])
        elif kind == "python" and not title:
            exec(compile(text, place, "exec"), names)


def test_every_tutorial_has_a_test() -> None:
    tested = {*OWN_TESTS, *STARTING_FROM_A_RUN, "tutorials/own-images.md", "tutorials/concepts.md"}
    tested |= {"tutorials/add-a-method.md", "tutorials/detector.md"}
    assert tested == set(TUTORIALS)


@pytest.mark.slow  # the report
def test_own_images(work: Path) -> None:
    run_page("tutorials/own-images.md")
    assert (work / "runs/first/report.html").is_file()
    assert (work / "neighbours.html").is_file()


STARTING_FROM_A_RUN = {
    "tutorials/few-labels.md": ["segmented/masks/1.png", "finer/overlays/2.jpg"],
    "tutorials/video.md": ["tracked/masks/00003.png", "tracked-again/masks/00003.png"],
    "tutorials/segmenter.md": ["runs/linear/model.safetensors", "runs/whole/report.html", "predictions/masks/1.png"],
    "tutorials/finetune.md": ["predictions/predictions.csv", "runs/flowers/model.safetensors"],
}


@pytest.mark.parametrize("place", STARTING_FROM_A_RUN)
def test_tutorials_that_start_from_a_run(place: str, encoder: Path, work: Path) -> None:
    shutil.copytree(encoder, work / "runs/first")
    if place == "tutorials/few-labels.md":  # here the examples are masks
        shutil.rmtree("labelled")
        (work / "labelled-masks").rename("labelled")
    run_page(place)
    for path in STARTING_FROM_A_RUN[place]:
        assert (work / path).is_file(), sorted(work.rglob("*"))


def test_concepts(work: Path) -> None:
    run_page("tutorials/concepts.md")
    assert list((work / "seen").glob("*.html"))
    assert (work / "edited/a.edited.png").is_file()


def test_add_a_method(work: Path) -> None:
    place = "tutorials/add-a-method.md"
    files = {title: text for _, title, text in blocks(place) if title}
    assert set(files) == {"simsiam.py", "simsiam.yaml"}
    for name, text in files.items():
        (work / name).write_text(text)
    run_page(place)
    assert (work / "runs/simsiam/method.py").read_text() == files["simsiam.py"]
    assert (work / "runs/simsiam-scenes/encoder.safetensors").is_file()


def test_shards_as_described(work: Path) -> None:
    (script,) = (text for _, title, text in blocks("large-data.md") if title == "make-shards.sh")
    subprocess.run(["bash", "-e"], input=script, text=True, check=True)
    found = open_source("shards")
    assert len(found) == len(list((work / "photos").iterdir())) == 16
    assert found[0].image.shape == (3, 48, 48)


def test_the_study_for_choosing_a_method(work: Path) -> None:
    (study,) = (text for _, title, text in blocks("choose.md") if title == "mine.yaml")
    (work / "mine.yaml").write_text(study)
    run_page("choose.md")
    assert not (work / "studies").exists()


def test_the_loss_of_the_added_method(work: Path) -> None:
    """Against the equation, with its stopped gradient."""
    files = {title: text for _, title, text in blocks("tutorials/add-a-method.md") if title}
    names: dict[str, Any] = {"__name__": "simsiam"}
    exec(compile(files["simsiam.py"], "simsiam.py", "exec"), names)
    p, z = torch.randn(3, 4), torch.randn(3, 4)
    slow = sum(float(a @ b / (a.norm() * b.norm())) for a, b in zip(p, z, strict=True)) / 3
    assert float(names["similarity"](p, z)) == pytest.approx(slow, abs=1e-6)


def test_detector(encoder: Path, work: Path) -> None:
    place = "tutorials/detector.md"
    words = [words[1:] for kind, _, text in blocks(place) if kind == "bash" for words in commands(text)]
    assert [word[0] for word in words] == ["finetune", "predict", "evaluate"]
    shutil.copytree(encoder, work / "runs/first")
    write_coco(work)
    run_page(place)
    assert list((work / "predictions").glob("*.json"))


def write_coco(folder: Path) -> None:
    """Annotations of the photographs, with boxes and polygons."""
    for name, numbers in (("coco.json", range(1, 13)), ("coco-val.json", range(13, 17))):
        images, boxes = [], []
        for number in numbers:
            x, y = 8 + 5 * (number % 4), 10 + 3 * (number % 5)
            images.append({"id": number, "file_name": f"photos/{number}.png", "width": 48, "height": 48})
            outline = [x, y, x + 18, y, x + 18, y + 18, x, y + 18]
            box = {"bbox": [x, y, 18, 18], "area": 324, "segmentation": [outline], "iscrowd": 0}
            boxes.append({"id": number, "image_id": number, "category_id": 1, **box})
        categories = [{"id": 1, "name": "disc"}]
        text = json.dumps({"images": images, "annotations": boxes, "categories": categories})
        (folder / name).write_text(text)
