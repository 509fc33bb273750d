"""Readers of files that others wrote, fuzzed by coverage with atheris, which is not among the dependencies.

    pip install atheris
    python -m tests.campaigns.coverage tar -max_total_time=120

A reader raises `UserError` or `BadImage`; anything else ends the fuzzer, which keeps the input. The words after
the name of a reader are for libFuzzer.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["asterism.data", "asterism.inputs", "asterism.extras", "asterism.tools"]):
    from asterism.data.sources.boxes import read_boxes
    from asterism.data.sources.coco import CocoMasks
    from asterism.data.sources.shards import open_shards
    from asterism.extras.words.sources.captions import open_captions
    from asterism.inputs import read_json
    from asterism.tools.predict import video_frames
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from tests.campaigns.faults import shard

COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 9, "width": 12}],
    "categories": [{"id": 3, "name": "thing"}],
    "annotations": [
        {"image_id": 1, "category_id": 3, "area": 4, "segmentation": [[1, 1, 5, 1, 5, 5]]},
        {"image_id": 1, "category_id": 3, "area": 4, "segmentation": {"size": [9, 12], "counts": [1, 2]}},
    ],
}


def _tar(path: Path) -> None:
    source = open_shards(path)
    for index in range(len(source)):
        with contextlib.suppress(BadImage):
            source[index]


def _masks(path: Path) -> None:
    masks = CocoMasks(path)
    for image in masks.images.values():
        masks(image)


def _captions(path: Path) -> None:
    source = open_captions(path)
    for index in range(len(source)):
        source.captions(index)


def _film() -> bytes:
    from tests.tools.test_video_frames import write_video

    with tempfile.TemporaryDirectory() as folder:
        return write_video(Path(folder) / "film.mp4").read_bytes()


READERS: dict[str, tuple[str, Callable[[Path], object], Callable[[], bytes]]] = {
    "tar": (".tar", _tar, shard),
    "json": (".json", read_json, lambda: json.dumps(COCO).encode()),
    "masks": (".json", _masks, lambda: json.dumps(COCO).encode()),
    "boxes": (".json", read_boxes, lambda: b'{"a.png": [[0, 0, 3, 4]], "b.png": [1, 2, 3, 4]}'),
    "captions": (".jsonl", _captions, lambda: b'{"image": "a.png", "captions": ["a dog"]}\n'),
    "captions.csv": (".csv", _captions, lambda: b'image,caption\na.png,"a dog, a\n"\n'),
    "video": (".mp4", lambda path: list(video_frames(path)), _film),
}


def main() -> None:
    suffix, read, seed = READERS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as name:
        (corpus := Path(name) / "corpus").mkdir()
        (corpus / "seed").write_bytes(seed())
        path = Path(name) / f"fuzzed{suffix}"

        def once(content: bytes) -> None:
            path.write_bytes(content)
            with contextlib.suppress(UserError, BadImage):
                read(path)

        atheris.Setup([sys.argv[0], str(corpus), *sys.argv[2:]], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
