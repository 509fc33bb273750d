"""Predictions of a fine-tuned model for images, folders and videos: files for programs, pictures for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from asterism.errors import MissingExtra, UserError, reason_of
from asterism.files import filling
from asterism.finetuning.model import FinetunedModel
from asterism.images.bad_image import BadImage
from asterism.images.decode import SUFFIXES, decode
from asterism.images.write import save_picture
from asterism.inputs import as_text
from asterism.viz.bar import Bar

_MOST_VALUES = 200_000_000  # bytes of the images of a batch, beyond which it is not filled


@dataclass(frozen=True)
class PredictedFolder:
    """What was written."""

    folder: Path
    images: int
    files: list[Path]  # tables and annotations; the pictures are in `folder/drawings`
    skipped: list[BadImage] = field(default_factory=list)

    def summary(self) -> str:
        return "\n".join([f"{self.images} images: {self.folder / 'drawings'}", *map(str, self.files)])

    def warnings(self) -> list[str]:
        return [f"skipped {bad}" for bad in self.skipped]


@torch.no_grad()
def predict_images(model: FinetunedModel, images: Path, out: Path, *, batch_size: int = 16) -> PredictedFolder:
    """Predict one image, every image of a folder, or every frame of a video; writes all files or none."""
    if batch_size < 1:
        raise UserError(f"batch_size = {batch_size} must be at least 1")
    skipped: list[BadImage] = []
    total, pictures = _opened(images, skipped)
    done = 0
    with filling(out) as folder, Bar(images.name, total) as bar:
        (folder / "drawings").mkdir()
        writer = model.task.writer(folder)
        for batch in _batches(pictures, batch_size):
            predictions = model.eval().task.predict([image for _, _, image in batch])
            for (key, name, image), prediction in zip(batch, predictions, strict=True):
                writer.add(key, image, prediction)
                drawing = folder / "drawings" / f"{name}.jpg"
                drawing.parent.mkdir(parents=True, exist_ok=True)
                save_picture(model.task.drawing(image, prediction), drawing)
            done += len(batch)
            bar.advance(len(batch))
        if not done:
            first = f"; the first error: {skipped[0]}" if skipped else ""
            raise UserError(f"none of the images of {images} can be read{first}")
        files = [out / path.relative_to(folder) for path in writer.close()]
    return PredictedFolder(out, done, files, skipped)


_Picture = tuple[str, str, UInt8[Tensor, "3 _ _"]]  # key, name of its drawing, pixels


def _opened(place: Path, skipped: list[BadImage]) -> tuple[int, Iterator[_Picture]]:
    """The number of images, and the readable ones one after the other."""
    if place.suffix.lower() in VIDEO_SUFFIXES and place.is_file():
        frames = video_frames(place)
        return frame_count(place), ((f"{number:06d}", f"{number:06d}", frame) for number, frame in enumerate(frames))
    files = [place] if place.is_file() else _listed(place)
    return len(files), _decoded(place if place.is_dir() else place.parent, files, skipped)


def _listed(folder: Path) -> list[Path]:
    """The images of a folder and the folders in it, sorted."""
    if not folder.is_dir():
        raise UserError(f"no such file or folder: {folder}")
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not found:
        raise UserError(f"no images in {folder}; give a folder of images, one image, or a video")
    return found


def _decoded(root: Path, files: list[Path], skipped: list[BadImage]) -> Iterator[_Picture]:
    keys = [as_text(path.relative_to(root).as_posix()) for path in files]
    for path, key, name in zip(files, keys, drawing_names(keys), strict=True):
        try:
            yield key, name, decode(path, key)
        except BadImage as error:
            skipped.append(error)


def drawing_names(keys: Sequence[str]) -> list[str]:
    """Names without extension, in the folders of the images; with it where two images differ in nothing else."""
    bare = [key.removesuffix(Path(key).suffix) for key in keys]
    shared = Counter(bare)
    return [key if shared[name] > 1 else name for key, name in zip(keys, bare, strict=True)]


def _batches(pictures: Iterable[_Picture], size: int) -> Iterator[list[_Picture]]:
    """At most `size` images, and fewer if they are large: whole images are in memory."""
    batch: list[_Picture] = []
    values = 0
    for picture in pictures:
        batch.append(picture)
        values += picture[2].numel()
        if len(batch) == size or values >= _MOST_VALUES:
            yield batch
            batch, values = [], 0
    if batch:
        yield batch


# FFmpeg's readers by suffix. It is not left to guess from the content: among its formats are lists of other files and
# addresses, which a file from a stranger could make it open.
_FORMATS = {
    **dict.fromkeys((".mp4", ".mov", ".m4v"), "mov"),
    **dict.fromkeys((".mkv", ".webm"), "matroska"),
    **dict.fromkeys((".mpg", ".mpeg"), "mpeg"),
    ".avi": "avi",
}
VIDEO_SUFFIXES = tuple(_FORMATS)


def video_frames(path: Path) -> Iterator[UInt8[Tensor, "3 h w"]]:
    """RGB frames in order; needs the extra `video`."""
    with _container(path) as container:
        try:
            for frame in container.decode(video=0):
                yield torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1).contiguous()
        except _errors() as error:
            raise UserError(f"cannot read the frames of {path}: {reason_of(error)}") from None


def frame_count(path: Path) -> int:
    """As the file states it; at least 1."""
    with _container(path) as container:
        return max(1, int(container.streams.video[0].frames))


def _container(path: Path) -> Any:
    av = _av()
    try:
        container = av.open(str(path), format=_FORMATS[path.suffix.lower()], options={"protocol_whitelist": "file"})
    except _errors() as error:
        raise UserError(f"{path} is not a video that can be opened: {reason_of(error)}") from None
    if not container.streams.video:
        raise UserError(f"{path} has no pictures, only other streams; give a video")
    return container


def _errors() -> tuple[type[Exception], ...]:
    return (_av().FFmpegError, OSError, ValueError)


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise MissingExtra("av", "video") from None
    return av
