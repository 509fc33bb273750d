"""Captioned images in every format, and what is wrong with those that are refused."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.extras.words.sources.captioned import pairs_of
from asterism.extras.words.sources.captions import open_captions, open_pairs


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((10, 10, 3), 99, np.uint8)).save(path)
    return path


def lines(folder: Path, *rows: object) -> Path:
    file = folder / "captions.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c", "d"):
        picture(tmp_path / f"{name}.png")
    return tmp_path


def test_jsonl(folder: Path) -> None:
    file = lines(
        folder,
        {"image": "a.png", "captions": ["one", " two "], "split": "train"},
        {"image": "b.png", "caption": "three", "split": "test", "negatives": ["four", {"text": "five", "kind": "x"}]},
        {"image": "a.png", "text": "six", "split": "train"},
    )
    source = open_captions(file)
    assert [source.captions(i) for i in range(2)] == [("one", "two", "six"), ("three",)]
    assert [(n.text, n.caption, n.kind) for n in source.texts[1].negatives] == [
        ("four", "three", "negative"),
        ("five", "three", "x"),
    ]
    assert source[1].image.shape == (3, 10, 10)
    assert open_captions(folder, "test").keys() == ["b.png"]
    assert source.fingerprint != open_captions(file, "train").fingerprint
    with pytest.raises(UnknownSplit, match="train"):
        open_captions(file, "val")


def test_shards(folder: Path) -> None:
    with tarfile.open(folder / "pairs.tar", "w") as tar:
        for name, suffix, text in (("a", "txt", "one\ntwo\n"), ("b", "json", '{"caption": "three"}')):
            tar.add(folder / f"{name}.png", f"{name}.png")
            info = tarfile.TarInfo(f"{name}.{suffix}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    source = open_captions(folder / "pairs.tar")
    assert [source.captions(i) for i in range(2)] == [("one", "two"), ("three",)]
    with tarfile.open(folder / "pairs.tar", "a") as tar:
        tar.add(folder / "c.png", "c.png")
    with pytest.raises(UserError, match="1 images without a caption, such as pairs/c"):
        open_captions(folder / "pairs.tar")


def test_winoground_and_mmvp(tmp_path: Path) -> None:
    for number in (0, 1):
        picture(tmp_path / "w" / "images" / f"ex_0_img_{number}.png")
        picture(tmp_path / "m" / "MLLM_VLM Images" / "Color" / f"{number + 1}.jpg")
    example = {"id": 0, "image_0": "ex_0_img_0", "image_1": "ex_0_img_1", "caption_0": "x", "caption_1": "y"}
    (tmp_path / "w" / "examples.jsonl").write_text(json.dumps(example))
    (tmp_path / "m" / "Questions.csv").write_text("Question ID,Type,Statement\n1,Color,red\n2,Color,blue\n")
    (pair,) = pairs_of(open_pairs(tmp_path / "w"))
    assert (pair.images, pair.captions) == ((0, 1), ("x", "y"))
    (pair,) = pairs_of(open_pairs(tmp_path / "m"))
    assert (pair.captions, pair.category) == (("red", "blue"), "Color")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "a.png", "caption": " "}, "line 1 has an empty caption"),
        ({"image": "a.png", "captions": []}, "line 1 has an empty list"),
        ({"image": "a.png"}, "line 1 has no caption"),
        ({"image": "a.png", "captions": [3]}, "line 1 has no caption"),
        ({"caption": "x"}, "line 1 names no image"),
        ({"image": "gone.png", "caption": "x"}, "names the image 'gone.png', which is not in"),
        ("{broken", "line 1 is not valid JSON"),
        ([1], "line 1 holds a list"),
        ("", "is empty"),
    ],
)
def test_bad_lines(folder: Path, row: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        open_captions(lines(folder, row))
    assert "\n" not in str(error.value)


def test_pairs_have_two_images(folder: Path) -> None:
    rows = [{"image": f"{name}.png", "caption": name, "pair": "p"} for name in "abc"]
    with pytest.raises(UserError, match="'p' has 3 images"):
        pairs_of(open_captions(lines(folder, *rows)))
    with pytest.raises(UserError, match="has no pairs"):
        pairs_of(open_captions(lines(folder, {"image": "a.png", "caption": "x"})))


def test_sentences_about_scenes_are_true() -> None:
    """Each relation against the masks of the scene itself, and no negative is also a caption."""
    source = open_captions("scenes:size=64,count=60", "test")
    checked = 0
    for index in range(len(source)):
        sample, texts = source[index], source.texts[index]
        assert sample.semantic is not None
        assert not {negative.text for negative in texts.negatives} & set(texts.captions)
        assert texts == open_captions("scenes:size=32,count=60", "test").texts[index] if index < 2 else True
        centres = {}
        for label in sample.semantic.unique().tolist():
            if label:
                rows, columns = (sample.semantic == label).nonzero().float().mean(0).tolist()
                centres[source.classes[label - 1]] = (columns, rows)  # type: ignore[index]
        for caption in texts.captions:
            for words, axis, sign in (
                (" left of ", 0, 1),
                (" right of ", 0, -1),
                (" above ", 1, 1),
                (" below ", 1, -1),
            ):
                if words in caption:
                    first, second = (centres[part.split()[-1]][axis] for part in caption.split(words))
                    assert sign * (second - first) > 0, caption
                    checked += 1
    assert checked > 20


def test_pairs_of_scenes_differ_as_they_say() -> None:
    source = open_pairs("scenes:size=32,count=3", "test")
    assert [pair.category for pair in pairs_of(source)] == ["left-right", "above-below", "colour"]
    assert (source[0].image.flip(2) == source[1].image).all()
    assert (source[2].image.flip(1) == source[3].image).all()
    a, b = pairs_of(source)[2].captions
    assert sorted(a.replace("an ", "a ").split()) == sorted(b.replace("an ", "a ").split())
    assert a != b
