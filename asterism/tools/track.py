"""Tracks the objects of a first-frame mask through a video: `asterism track`.

Writes masks/<frame>.png with the values of the first mask, overlays/<frame>.jpg, the overlays as an animation, and
tracking.json with the confidence in every object and where it is lost: all of them, or nothing if a frame cannot be
read or written. An object is lost while its patches look more like other parts of the first frame than like the object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from jaxtyping import Int64
from PIL import Image, features
from torch import Tensor

from asterism.data.sources.davis import list_frames
from asterism.errors import UserError
from asterism.features.mask_tracking import FollowedFrame, Tracking, follow_objects
from asterism.files import filling, write_text
from asterism.images.masks import mask_size, read_mask, save_mask, white_as_object
from asterism.images.pictures import read_picture
from asterism.images.write import save_picture, to_pillow
from asterism.nn.encoder import Encoder
from asterism.ranges import Share
from asterism.viz.bar import Bar
from asterism.viz.mask_overlay import overlay

_MOST_WIDTH = 640  # pixels, of the animation
_MOST_FRAMES = 300  # of the animation, which Pillow holds in memory; frames of longer videos are skipped evenly
_MILLISECONDS = 66  # per frame of the video: 15 frames per second


class TrackingObjects(Tracking):
    """Settings of `asterism track`."""

    lost_below: Share = 0.5  # confidence below which an object is lost


@dataclass(frozen=True)
class Loss:
    """Frames in a row in which an object is lost, by name."""

    object: int
    first: str
    last: str | None  # None: it is not found again
    confidence: float  # in the first of these frames

    def __str__(self) -> str:
        until = "and not found again" if self.last is None else f"until frame {self.last}"
        return f"object {self.object} is lost from frame {self.first} on {until} (confidence {self.confidence:.0%})"


@dataclass(frozen=True)
class Tracked:
    """The files that were written."""

    folder: Path
    frames: int
    objects: int
    animation: Path
    lost: list[Loss] = field(default_factory=list)

    def summary(self) -> str:
        objects = "1 object" if self.objects == 1 else f"{self.objects} objects"
        return f"{objects} in {self.frames} frames: {self.folder}\n{self.animation}"

    def warnings(self) -> list[str]:
        return [str(loss) for loss in self.lost]


def track_video(encoder: Encoder, video: Path, mask: Path, out: Path, config: TrackingObjects) -> Tracked:
    """Propagate the mask of the first frame through all frames of a folder."""
    frames = _frames(video)
    first_mask = read_first_mask(mask, frames[0])
    with filling(out) as folder, Bar(video.name, len(frames)) as bar:
        for name in ("masks", "overlays"):
            (folder / name).mkdir()
        found = follow_objects(encoder.eval(), (read_picture(frame) for frame in frames), first_mask, config)
        confidence: dict[int, list[float]] = {int(number): [] for number in torch.unique(first_mask) if number > 0}
        for frame, own in zip(frames, _with_first(first_mask, found), strict=True):
            for number, values in confidence.items():
                values.append(own.confidence[number])
            save_mask(own.mask, folder / "masks" / f"{frame.stem}.png")
            save_picture(overlay(read_picture(frame), own.mask), folder / "overlays" / f"{frame.stem}.jpg")
            bar.advance(1)
        animation = _animate([folder / "overlays" / f"{frame.stem}.jpg" for frame in frames], folder)
        names = [frame.stem for frame in frames]
        lost = [
            loss for number, values in confidence.items() for loss in losses(number, names, values, config.lost_below)
        ]
        write_text(folder / "tracking.json", _summary(names, confidence, lost, config))
    return Tracked(out, len(frames), len(confidence), out / animation.name, lost)


def losses(number: int, frames: Sequence[str], confidence: Sequence[float], below: float) -> list[Loss]:
    """The stretches of frames in which the confidence in an object is too low."""
    found: list[Loss] = []
    for place, value in enumerate(confidence):
        if value < below and (place == 0 or confidence[place - 1] >= below):
            after = next((i for i in range(place, len(frames)) if confidence[i] >= below), None)
            found.append(Loss(number, frames[place], None if after is None else frames[after - 1], round(value, 4)))
    return found


def _summary(
    names: Sequence[str], confidence: Mapping[int, Sequence[float]], lost: Sequence[Loss], config: TrackingObjects
) -> str:
    values = {
        "lost_below": config.lost_below,
        "lost": [asdict(loss) for loss in lost],
        "confidence": {
            str(number): {name: round(value, 4) for name, value in zip(names, own, strict=True)}
            for number, own in confidence.items()
        },
    }
    return json.dumps(values, indent=2) + "\n"


def read_first_mask(path: Path, frame: Path) -> Int64[Tensor, "h w"]:
    """The mask of the first frame; it must have the frame's size and not be empty."""
    height, width = read_picture(frame).shape[1:]
    size = mask_size(path)
    if size != (height, width):
        raise UserError(
            f"the mask {path} has {size[1]}×{size[0]} pixels, but the first frame {frame} has "
            f"{width}×{height}; make the mask the size of the frame"
        )
    mask = read_mask(path)
    mask = white_as_object(mask, set(torch.unique(mask).tolist()))
    if not (mask > 0).any():
        raise UserError(f"the mask {path} is empty: give every object a value or colour other than black")
    if int(mask.max()) > 255:
        raise UserError(f"the mask {path} has the value {int(mask.max())}; number objects from 1 to 255")
    return mask


def _frames(video: Path) -> list[Path]:
    if video.is_file():
        raise UserError(
            f"{video} is a file; give a folder of its frames, for example made with: ffmpeg -i {video} frames/%05d.jpg"
        )
    frames = list_frames(video)
    if len(frames) < 2:
        raise UserError(f"{video} contains one frame, {frames[0].name}; a video needs at least two")
    stems = [frame.stem for frame in frames]
    if len(set(stems)) < len(stems):
        raise UserError(f"{video} has frames of the same name with different extensions; keep one of each")
    return frames


def _with_first(first: Int64[Tensor, "h w"], rest: Iterator[FollowedFrame]) -> Iterator[FollowedFrame]:
    """The mask that the user gave is certain."""
    yield FollowedFrame(first, {int(number): 1.0 for number in torch.unique(first) if number > 0})
    yield from rest


def _animate(pictures: list[Path], out: Path) -> Path:
    """Write the overlays as an animation: WebP if Pillow supports it, else GIF."""
    stride = -(-len(pictures) // _MOST_FRAMES)

    def small() -> Iterator[Image.Image]:
        for path in pictures[::stride]:
            image = to_pillow(read_picture(path))
            image.thumbnail((_MOST_WIDTH, _MOST_WIDTH))
            yield image

    target = out / ("overlay.webp" if features.check("webp") else "overlay.gif")
    images = small()
    next(images).save(target, save_all=True, append_images=images, duration=stride * _MILLISECONDS, loop=0)
    return target
