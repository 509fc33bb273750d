"""Parsers of what users write: they return a value or raise a `UserError` in one sentence, never anything else."""

import csv
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from asterism.config import with_overrides
from asterism.data.sources.boxes import read_boxes
from asterism.data.sources.coco import CocoMasks
from asterism.data.sources.shards import open_shards
from asterism.data.sources.tar_index import members
from asterism.data.views import Views
from asterism.errors import UserError
from asterism.evals.few_labels import listed_places
from asterism.extras.words.sources.captions import open_captions
from asterism.extras.words.towers.words import WordTokens
from asterism.images.masks import read_mask, read_values, save_mask
from asterism.index.read import open_index
from asterism.index.write import write_embeddings
from asterism.inputs import read_json, read_text
from asterism.ops.geometry import geometry_from_rows, locate, patch_centers, to_image, to_view
from asterism.train.recipe import load_recipe
from asterism.types import Model, ViewSpec
from asterism.yaml_text import parse_yaml
from tests.campaigns.faults import resealed, shard
from tests.data.sample_sources import Numbered
from tests.evals.samples import small_encoder
from tests.properties import few

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, width=32)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@contextmanager
def refused_in_words(kind: type[Exception] = UserError) -> Iterator[None]:
    """Anything but a refusal with a message fails the test."""
    try:
        yield
    except kind as error:
        if not 0 < len(str(error)) < 5000:
            raise AssertionError("a refusal without words") from error


@few(40)
@given(plain)
def test_yaml_that_was_written_is_read_back(value: Any) -> None:
    assert parse_yaml(yaml.safe_dump(value)) == value
    assert parse_yaml(json.dumps(value).replace("Infinity", ".inf")) == value  # JSON has no infinity


@few(60)
@given(st.text(st.sampled_from("ab:-[]{}&*!|>#'\"?,%@`\n 0123.e<=~\t\\"), max_size=60))
def test_any_text_is_yaml_or_a_value_error(text: str) -> None:
    with refused_in_words(ValueError):
        parse_yaml(text)


@few(80)
@given(st.lists(st.text(st.sampled_from("abtrainer.steps=[]{}:,-0123 "), max_size=20), max_size=3))
def test_overrides_change_a_mapping_or_are_named(overrides: list[str]) -> None:
    with refused_in_words():
        changed = with_overrides({"trainer": {"steps": 1}, "method": "dino"}, overrides)
        assert isinstance(changed, dict)


@few(25)
@given(
    st.sampled_from(["trainer.steps", "trainer.seed", "optim.lr", "optim.betas", "data.path", "method.name", "data"]),
    plain,
)
def test_any_value_of_a_setting_is_accepted_or_named(key: str, value: Any) -> None:
    with refused_in_words():
        load_recipe("dino", ["data.path=scenes", f"{key}={json.dumps(value)}"])


def entries(content: bytes, folder: Path) -> list[Any]:
    path = folder / "a.tar"
    path.write_bytes(content)
    with path.open("rb") as file:
        return list(members(path, file))


@few()
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=120),
        st.binary(max_size=700),
        max_size=4,
    )
)
def test_tar_members_are_those_of_the_standard_library(tmp_path: Path, files: dict[str, bytes]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    found = entries(buffer.getvalue(), tmp_path)
    assert [(each.name, each.size) for each in found] == [(name, len(content)) for name, content in files.items()]
    written = buffer.getvalue()
    assert [written[each.offset : each.offset + each.size] for each in found] == list(files.values())


@few(60)
@given(st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=12)), max_size=4), st.integers(0, 9000))
def test_a_damaged_tar_is_refused_or_read_within_its_bounds(
    tmp_path: Path, damage: list[tuple[int, bytes]], length: int
) -> None:
    content = bytearray(shard())
    for place, change in damage:
        content[place : place + len(change)] = change
    with refused_in_words():
        found = entries(bytes(content[:length]), tmp_path)
        assert all(0 <= each.offset <= each.offset + each.size <= length for each in found)


@few(50)
@given(st.sampled_from([0, 100, 124, 136, 156, 257, 345]), st.binary(min_size=1, max_size=12))
def test_a_sealed_header_with_any_field_ends(tmp_path: Path, place: int, field: bytes) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(resealed(shard(), place, field))
    with refused_in_words():
        source = open_shards(path)
        assert len(source) <= 4
        assert len(source.keys()) == len(source)


@pytest.fixture(scope="module")
def parquet_index(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("index") / "a.parquet"
    write_embeddings(small_encoder(), Numbered(3), path, Model("m"), dense=False, batch_size=2, opened=("x", None))
    assert pyarrow.parquet.read_table(path).num_rows == 3
    return path.read_bytes()


@few(60)
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
    st.floats(0.5, 1),
)
def test_a_damaged_index_is_refused_or_read(
    tmp_path: Path, parquet_index: bytes, damage: list[tuple[float, int]], kept: float
) -> None:
    content = bytearray(parquet_index)
    for place, value in damage:
        content[int(place * len(content))] = value
    path = tmp_path / "a.parquet"
    path.write_bytes(content[: int(kept * len(content))])
    with refused_in_words():
        index = open_index(path, small_encoder())
        assert sum(len(part) for part in index.vectors()) == len(index.keys)


@few(40)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=5))
def test_lists_of_images(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "list.txt"
    path.write_text("\n".join(["0", *lines]), encoding="utf-8")
    with refused_in_words():
        assert set(listed_places(path, Numbered(3))) <= {0, 1, 2}


@few(60)
@given(st.binary(max_size=40))
def test_any_bytes_are_text_or_json_or_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "list.json"
    path.write_bytes(content)
    for read in (read_text, read_json, read_boxes):
        with refused_in_words():
            read(path)


COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 9, "width": 12}],
    "categories": [{"id": 3, "name": "thing"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "area": 4, "segmentation": [[1, 1, 5, 1, 5, 5]]}],
}


@few(50)
@given(
    st.sampled_from(["images", "categories", "annotations"]),
    st.sampled_from(["id", "file_name", "height", "width", "name", "image_id", "category_id", "area", "segmentation"]),
    plain | st.fixed_dictionaries({"size": st.just([9, 12]), "counts": st.lists(st.integers(-5, 200), max_size=5)}),
)
def test_any_field_of_coco_is_read_or_named(tmp_path: Path, table: str, field: str, value: Any) -> None:
    content = json.loads(json.dumps(COCO))
    content[table][0][field] = value
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(content))
    with refused_in_words():
        masks = CocoMasks(path)
        for image in masks.images.values():
            assert set(np.unique(masks(image))) <= {0, 1, 255}


# Python ends lines at more characters than JSON does. JSON can spell half of a pair (a lone surrogate), NUL and paths.
sentences = st.text(st.sampled_from("ab é犬\"',\\\t\x0b\x1c\x85\u2028"), min_size=1, max_size=12).filter(str.strip)
wild = st.text(st.sampled_from("a\ud800\udcff\0/.~\x1b"), max_size=5) | st.just("a" * 5000) | plain


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures, next to which lists of captions are written."""
    folder = tmp_path_factory.mktemp("captioned")
    for name in ("a.png", "b.png"):
        Image.new("RGB", (9, 8)).save(folder / name)
    return folder


@few(40)
@given(st.lists(st.tuples(st.sampled_from(["a.png", "b.png"]), sentences), min_size=1, max_size=4), st.booleans())
def test_captions_that_were_written_are_read_back(
    pictures: Path, written: list[tuple[str, str]], ascii_only: bool
) -> None:
    """From JSONL, CSV, COCO's captions and tar files, with any character that a sentence may have."""
    expected: dict[str, list[str]] = {}
    for name, sentence in written:
        expected.setdefault(name, []).append(sentence.strip())
    lines = [json.dumps({"image": name, "caption": text}, ensure_ascii=ascii_only) for name, text in written]
    (pictures / "list.jsonl").write_text("\n".join(lines), encoding="utf-8", newline="")
    with (pictures / "list.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *written])
    images = [{"id": name, "file_name": name} for name in expected]
    annotations = [{"image_id": name, "caption": text} for name, text in written]
    (pictures / "list.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    with tarfile.open(pictures / "list.tar", "w") as archive:
        for name, texts in expected.items():
            archive.add(pictures / name, name)
            content = json.dumps({"captions": texts}).encode()
            member = tarfile.TarInfo(f"{Path(name).stem}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    for kind in ("jsonl", "csv", "json", "tar"):
        source = open_captions(pictures / f"list.{kind}")
        found = {key.rpartition("/")[2].split(".")[0]: list(source.captions(i)) for i, key in enumerate(source.keys())}
        assert found == {name.split(".")[0]: texts for name, texts in expected.items()}, kind
        assert source.fingerprint


def check_captions(path: Path) -> None:
    """They are refused by name, or whatever needs captions can use them: as numbers, as bytes, and as images."""
    with refused_in_words():
        source = open_captions(path)
        tower = WordTokens.learn((text for texts in source.texts for text in texts.captions), 9)
        for index in range(len(source)):
            assert all(isinstance(text, str) and text.strip() for text in source.captions(index))
            assert all(tower(text) for text in source.captions(index))
            assert source[index].image.shape[0] == 3
        assert source.fingerprint


@few(60)
@given(
    st.sampled_from(["image", "captions", "caption", "negatives", "pair", "category", "split", "caption_0", "image_0"]),
    wild | st.lists(st.dictionaries(st.sampled_from(["text", "kind", "caption"]), wild, max_size=3) | wild, max_size=2),
)
def test_any_field_of_a_line_of_captions(pictures: Path, field: str, value: Any) -> None:
    line = {"image": "a.png", "captions": ["a dog"]} | {field: value}
    (pictures / "any.jsonl").write_text(json.dumps(line))
    check_captions(pictures / "any.jsonl")


@few(40)
@given(st.sampled_from(["images", "annotations"]), st.sampled_from(["id", "file_name", "image_id", "caption"]), wild)
def test_any_field_of_coco_captions(pictures: Path, table: str, field: str, value: Any) -> None:
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "caption": "a dog"}]}
    content[table][0][field] = value
    (pictures / "any.json").write_text(json.dumps(content))
    check_captions(pictures / "any.json")


@few(60)
@given(st.text(st.sampled_from('image,caption\n\r"a.png\t \0\x85\ud800{}:[]'), max_size=60), st.booleans())
def test_any_text_is_a_list_of_captions_or_named(pictures: Path, text: str, header: bool) -> None:
    for kind, first in (("csv", "image,caption\n"), ("tsv", "image\tcaption\n"), ("jsonl", "")):
        path = pictures / f"any.{kind}"
        path.write_bytes(((first if header else "") + text).encode("utf-8", "surrogatepass"))
        check_captions(path)


@few(30)
@given(st.binary(max_size=60), st.sampled_from([".txt", ".json"]))
def test_any_bytes_next_to_an_image_of_a_shard_are_captions_or_named(
    pictures: Path, content: bytes, suffix: str
) -> None:
    with tarfile.open(pictures / "any.tar", "w") as archive:
        archive.add(pictures / "a.png", "a.png")
        member = tarfile.TarInfo(f"a{suffix}")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    check_captions(pictures / "any.tar")


@few(40)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 255), st.integers(0, 255))
def test_masks_keep_their_values(tmp_path: Path, height: int, width: int, first: int, second: int) -> None:
    mask = torch.full((height, width), first)
    mask[0, 0] = second
    path = tmp_path / "mask.png"
    save_mask(mask, path)
    assert torch.equal(read_mask(path), mask)
    assert not read_values(path)[1]


@few(60)
@given(st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F", "I;16"]), st.integers(0, 80))
def test_any_kind_of_mask_is_read_or_named(tmp_path: Path, mode: str, cut: int) -> None:
    path, buffer = tmp_path / "mask.tif", io.BytesIO()
    Image.new(mode, (9, 8)).save(buffer, "TIFF")
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) - cut])
    with refused_in_words():
        values, in_colour = read_values(path)
        assert values.shape == (8, 9)
        assert mode != "F"
        assert in_colour == (mode in ("RGB", "RGBA", "CMYK"))


shares = st.floats(0.01, 1)


@few(80)
@given(
    st.integers(8, 900),
    st.integers(8, 900),
    st.tuples(shares, shares).map(sorted),
    st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted),
    st.integers(-(2**63), 2**63 - 1),
)
def test_views_are_inside_their_image_and_points_come_back(
    height: int, width: int, scale: list[float], ratio: list[float], key: int
) -> None:
    spec = ViewSpec(size=16, scale=tuple(scale), ratio=tuple(ratio))
    views = Views([spec, ViewSpec(size=8, inside=0)]).sample([(height, width)], [key])[0]
    for view in views:
        crop = view.crop
        assert 0 <= crop.top < crop.top + crop.height <= height
        assert 0 <= crop.left < crop.left + crop.width <= width
        row = torch.tensor([[crop.top, crop.left, crop.height, crop.width, height, width, crop.flip]])
        geometry = geometry_from_rows(row.float())
        points = patch_centers(geometry, (3, 4))
        assert ((points > -0.5) & (points < torch.tensor([width, height]) - 0.5)).all()
        assert torch.allclose(to_image(geometry, to_view(geometry, points)), points, atol=1e-2)
        patches, inside = locate(geometry, points, (3, 4))
        assert patches[0].tolist() == list(range(12))
        assert inside.all()
    outer, inner = (view.crop for view in views)
    assert outer.top <= inner.top
    assert inner.top + inner.height <= outer.top + outer.height
