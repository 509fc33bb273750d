"""The frames of a video file, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from asterism.errors import MissingExtra, UserError, reason_of

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
    with _opened(path) as container:
        try:
            for frame in container.decode(video=0):
                yield torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1).contiguous()
        except _errors() as error:
            raise UserError(f"cannot read the frames of {path}: {reason_of(error)}") from None


def frame_count(path: Path) -> int:
    """As the file states it; at least 1."""
    with _opened(path) as container:
        return max(1, int(container.streams.video[0].frames))


def _opened(path: Path) -> Any:
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
