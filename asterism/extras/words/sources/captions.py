"""Opening captioned images: JSONL, CSV, COCO's captions, tar files in WebDataset's layout, Winoground, MMVP, scenes.

One line of JSONL is one image: {"image": "a.jpg", "captions": ["…", "…"]}. Further keys are "split", "negatives" (a
list of sentences, or of {"text", "kind", "caption"}), and "pair" with "category" for two images that differ in one
respect. A CSV file has the columns image and caption, and may repeat an image. Paths are relative to the file.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asterism.data.sources import splits
from asterism.data.sources.catalog import SCENES
from asterism.data.sources.open import scene_settings
from asterism.data.sources.shards import find_shards, is_tar, open_shards
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError, reason_of
from asterism.extras.words.sources.captioned import Captioned, Negative, Texts
from asterism.extras.words.sources.listed_images import ListedImages, is_file
from asterism.extras.words.sources.shard_texts import texts_of_shards
from asterism.inputs import MAX_JSON, is_text, parse_json, read_json, read_text, user_path

_IMAGE = ("image", "file_name", "filename", "filepath", "image_path", "path")
_CAPTION = ("captions", "caption", "text", "title")
_LISTS = ("captions.jsonl", "captions.csv", "captions.json", "metadata.jsonl", "metadata.csv")  # looked for in a folder
_FORMATS = (
    "give a .jsonl or .csv file, COCO's captions (.json), tar files with .txt next to each image, or scenes; see "
    "docs/words.md"
)


def open_captions(path: str | os.PathLike[str], split: str | None = None) -> Captioned:
    """Captioned images by path or name; without `split`, all of them, except that scenes give their training part."""
    text = os.fspath(path)
    place = user_path(text)
    if place.is_dir():
        return _open_folder(place, split)
    if place.is_file():
        return _open_file(place, split)
    if text.partition(":")[0] == SCENES:
        from asterism.extras.words.sources.scene_captions import captioned_scenes  # builds its shapes on import

        return captioned_scenes(scene_settings(text.partition(":")[2]), split or "train")
    raise UserError(f"there are no captions at {text}; {_FORMATS}")


def open_pairs(path: str | os.PathLike[str], split: str | None = None) -> Captioned:
    """Images in pairs that differ in one respect, with a sentence each."""
    text = os.fspath(path)
    if not user_path(text).exists() and text.partition(":")[0] == SCENES:
        from asterism.extras.words.sources.scene_pairs import scene_pairs  # builds its shapes on import

        return scene_pairs(scene_settings(text.partition(":")[2]), split or "train")
    return open_captions(text, split)


def _open_folder(folder: Path, split: str | None) -> Captioned:
    if (folder / "Questions.csv").is_file():
        return _mmvp(folder)
    if (folder / "examples.jsonl").is_file():
        return _from_lines(folder / "examples.jsonl", split)
    for name in _LISTS:
        if (folder / name).is_file():
            return _open_file(folder / name, split)
    if find_shards(folder):
        return _from_shards(folder, split)
    raise UserError(f"{folder} has no captions: none of {', '.join(_LISTS)}, and no tar files; {_FORMATS}")


def _open_file(file: Path, split: str | None) -> Captioned:
    suffix = file.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _from_lines(file, split)
    if suffix in (".csv", ".tsv"):
        return _from_table(file, split)
    if suffix == ".json":
        return _from_coco(file, split)
    if is_tar(file):
        return _from_shards(file, split)
    raise UserError(f"{file} does not contain captions that can be read; {_FORMATS}")


@dataclass
class _Entry:
    """What the lines of a list say about one image."""

    captions: list[str] = field(default_factory=list)
    negatives: list[Negative] = field(default_factory=list)
    pair: str | None = None
    category: str | None = None

    def texts(self) -> Texts:
        return Texts(tuple(self.captions), tuple(self.negatives), self.pair, self.category)


@dataclass
class _List:
    """The entries of a list by image, in the order of their first lines."""

    file: Path
    folder: Path  # that the images' paths are relative to
    split: str | None
    entries: dict[str, _Entry] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)  # splits that occur

    def entry(self, image: str, part: object) -> _Entry | None:
        """The entry of an image; None if it belongs to another split."""
        if part is not None:
            self.parts.add(str(part))
        if self.split not in (None, splits.EVERYTHING) and part != self.split:
            return None
        return self.entries.setdefault(image, _Entry())

    def source(self) -> Captioned:
        if not self.entries:
            if self.split not in (None, splits.EVERYTHING):
                found = ", ".join(sorted(self.parts)) or "no splits, so leave the split out"
                raise UnknownSplit(f"{self.file}: there is no split {self.split!r}; it has {found}")
            raise UserError(f"{self.file} is empty; {_FORMATS}")
        name = f"{self.file.resolve().parent.name}/{self.file.stem}" + (f"/{self.split}" if self.split else "")
        images = ListedImages(name, self.folder, list(self.entries), self.file)
        return Captioned(images, [entry.texts() for entry in self.entries.values()])


def _from_lines(file: Path, split: str | None) -> Captioned:
    made = _List(file, file.parent, split)
    lines = read_text(file, MAX_JSON).split("\n")  # `splitlines` also splits at characters that JSON may contain
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            values = parse_json(line)
        except ValueError as error:
            raise UserError(f"{place} is not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise UserError(f"{place} holds a {type(values).__name__}; every line is an object such as {_EXAMPLE}")
        if "caption_0" in values:
            _add_winoground(made, values, place)
        else:
            _add_line(made, values, place)
    return made.source()


_EXAMPLE = '{"image": "a.jpg", "captions": ["two dogs on a beach"]}'


def _add_line(made: _List, values: Mapping[str, Any], place: str) -> None:
    image, given = _value(values, _IMAGE), _value(values, _CAPTION)
    if not isinstance(image, str) or not image:
        raise UserError(f"{place} names no image; write {_EXAMPLE}")
    captions = [_sentence(text, place) for text in (given if isinstance(given, list) else [given])]
    if not captions:
        raise UserError(f"{place} has an empty list of captions; write one, or leave the image out")
    negatives = values.get("negatives", [values["negative_caption"]] if "negative_caption" in values else [])
    if not isinstance(negatives, list):
        raise UserError(f"{place}: negatives must be a list of sentences")
    entry = made.entry(image, values.get("split"))
    if entry is None:
        return
    entry.captions += captions
    entry.negatives += [_negative(each, captions[0], place) for each in negatives]
    for key in ("pair", "category"):
        if values.get(key) is not None:
            setattr(entry, key, _name(values[key], place))


def _negative(value: Any, caption: str, place: str) -> Negative:
    if not isinstance(value, Mapping):
        return Negative(_sentence(value, place), caption, "negative")
    true, kind = (_name(value.get(key, usual), place) for key, usual in (("caption", caption), ("kind", "negative")))
    return Negative(_sentence(value.get("text"), place), true, kind)


def _add_winoground(made: _List, values: Mapping[str, Any], place: str) -> None:
    """An example of Winoground: two images, without suffix, and their sentences."""
    pair = _name(values.get("id", place), place)
    for number in (0, 1):
        image = values.get(f"image_{number}")
        if not isinstance(image, str):
            raise UserError(f"{place} lacks image_{number}")
        path = image if Path(image).suffix else f"{image}.png"
        if not is_file(made.folder / path) and is_file(made.folder / "images" / path):
            path = f"images/{path}"
        entry = made.entry(path, values.get("split"))
        if entry is not None:
            entry.captions.append(_sentence(values.get(f"caption_{number}"), place))
            entry.pair, entry.category = pair, _name(values.get("collapsed_tag", "pairs"), place)


def _from_table(file: Path, split: str | None) -> Captioned:
    made = _List(file, file.parent, split)
    rows = _rows(file)
    header = next(rows, [])
    names = {name.strip().lower(): column for column, name in enumerate(header)}
    image, caption = (next((names[n] for n in known if n in names), None) for known in (_IMAGE, _CAPTION))
    if image is None or caption is None:
        raise UserError(
            f"{file} has the columns {', '.join(map(repr, header)) or 'none'}; it needs image and caption, in its "
            "first line"
        )
    part = names.get("split")
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) != len(header):
            raise UserError(f"{file}, row {number} has {len(row)} cells, but there are {len(header)} columns")
        entry = made.entry(row[image], None if part is None else row[part])
        text = _sentence(row[caption], f"{file}, row {number}")
        if entry is not None:
            entry.captions.append(text)
    return made.source()


def _from_coco(file: Path, split: str | None) -> Captioned:
    """COCO's captions. The images are next to the file, in images/, or in the folder that the file is named after."""
    content = read_json(file)
    if not isinstance(content, dict) or not all(isinstance(content.get(k), list) for k in ("images", "annotations")):
        raise UserError(f"{file} is not COCO's captions: it lacks images or annotations; {_FORMATS}")
    if split not in (None, splits.EVERYTHING) and splits.part(split) not in {
        splits.part(word.strip("0123456789")) for word in file.stem.split("_")
    }:
        raise UnknownSplit(f"{file} has no splits; leave the split {split!r} out")
    try:
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        written: dict[Any, list[str]] = {}
        for annotation in content["annotations"]:
            text = _sentence(annotation["caption"], f"{file}, annotation {annotation.get('id')}")
            written.setdefault(annotation["image_id"], []).append(text)
        paths = [names[image] for image in written]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is not COCO's captions: {reason_of(error)} is missing or damaged") from None
    if not paths:
        raise UserError(f"{file} has no captions; {_FORMATS}")
    base, part = file.parent, file.stem.rpartition("_")[2]
    places = [base, base / "images", base / part, base.parent / part, base.parent / "images" / part, base.parent]
    folder = next((place for place in places if is_file(place / paths[0])), base)
    images = ListedImages(f"{base.resolve().name}/{file.stem}", folder, paths, file)
    return Captioned(images, [Texts(tuple(texts)) for texts in written.values()])


def _from_shards(place: Path, split: str | None) -> Captioned:
    shards = open_shards(place, split)
    return Captioned(shards, texts_of_shards(shards))


def _mmvp(folder: Path) -> Captioned:
    """MMVP-VLM: statements by number and pattern; two that follow each other are a pair."""
    file = folder / "Questions.csv"
    made = _List(file, folder, None)
    rows = [row for row in list(_rows(file))[1:] if row]
    if len(rows) % 2 or any(len(row) != 3 for row in rows):
        raise UserError(f"{file} is not that of MMVP-VLM: it needs pairs of rows with number, pattern and statement")
    for place, (number, pattern, statement) in enumerate(rows):
        entry = made.entry(f"MLLM_VLM Images/{pattern}/{number}.jpg", None)
        assert entry is not None
        entry.captions.append(_sentence(statement, f"{file}, row {place + 2}"))
        entry.pair, entry.category = str(place // 2), pattern
    return made.source()


def _rows(file: Path) -> Iterator[list[str]]:
    separator = "\t" if file.suffix.lower() == ".tsv" else ","
    try:
        yield from csv.reader(io.StringIO(read_text(file, MAX_JSON)), delimiter=separator)
    except csv.Error as error:
        raise UserError(f"{file} is not a valid table: {error}") from None


def _sentence(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place} has no caption; write {_EXAMPLE}, or the columns image and caption")
    if not value.strip():
        raise UserError(f"{place} has an empty caption; write one, or leave the image out")
    if not is_text(value):
        raise UserError(f"{place} has a caption with an invalid character ({ascii(value)[:60]}); write it again")
    return value.strip()


def _name(value: Any, place: str) -> str:
    if not is_text(str(value)):
        raise UserError(f"{place} has a name with an invalid character ({ascii(value)[:60]}); write it again")
    return str(value)


def _value(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if name in values), None)
