"""Videos with a mask for every frame: folders in DAVIS layout, and built-in scenes in motion."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from asterism.data.sources.catalog import SCENES
from asterism.data.sources.davis import open_davis
from asterism.data.sources.derived import Subset
from asterism.data.sources.open import scene_settings
from asterism.data.sources.scenes import Clip, SceneVideos
from asterism.data.sources.source import Sample, Source
from asterism.errors import UserError
from asterism.inputs import user_path

_SCENE_SETTINGS = {"size": 64, "videos": 30, "frames": 16, "seed": 0}
_OF_STILLS = ("count",)  # ignored, so that the data string of a training run can also be used for videos


@runtime_checkable
class VideoSource(Source, Protocol):
    """Frames of several videos, one video after the other; `instances` of a sample holds object numbers."""

    @property
    def clips(self) -> Mapping[str, range]:
        """The frames of each video, by name."""
        ...


def open_videos(path: str, split: str | None = None) -> VideoSource:
    """A DAVIS folder, or scenes in motion: `scenes`, `scenes:size=64,videos=30,frames=16,seed=0`."""
    place = user_path(path)
    if place.is_dir():
        return open_davis(place, split)
    name, _, settings = path.partition(":")
    if name == SCENES:
        given = scene_settings(settings, (*_SCENE_SETTINGS, *_OF_STILLS))
        return SceneFrames(**_SCENE_SETTINGS | {name: given[name] for name in given if name in _SCENE_SETTINGS})
    raise UserError(
        f"{path} has no videos with masks: name a folder in DAVIS layout (JPEGImages/480p/<video>/00000.jpg, "
        "Annotations/480p/<video>/00000.png, ImageSets/2017/val.txt), or scenes"
    )


def first_videos(source: VideoSource, count: int) -> VideoSource:
    """The first `count` videos, or all if there are fewer."""
    return _FirstVideos(source, dict(list(source.clips.items())[:count]))


class _FirstVideos(Subset):
    def __init__(self, source: VideoSource, clips: dict[str, range]) -> None:
        super().__init__(source, range(sum(len(clip) for clip in clips.values())))  # videos are contiguous
        self.clips = clips


class SceneFrames:
    """The frames of drawn videos."""

    classes: list[str] | None = None

    def __init__(self, size: int = 64, videos: int = 30, frames: int = 16, seed: int = 0) -> None:
        self._videos = SceneVideos(size=size, count=videos, frames=frames, seed=seed)
        self.name = self._videos.name
        self.clips: dict[str, range] = {
            str(video): range(video * frames, (video + 1) * frames) for video in range(videos)
        }
        self._clip = lru_cache(maxsize=1)(self._videos.__getitem__)

    def __reduce__(self) -> tuple[type[SceneFrames], tuple[int, int, int, int]]:
        videos = self._videos
        return type(self), (videos.size, videos.count, videos.frames, videos.seed)

    @property
    def fingerprint(self) -> str:
        return self._videos.fingerprint

    def __len__(self) -> int:
        return len(self._videos) * self._videos.frames

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        video, frame = divmod(index, self._videos.frames)
        clip: Clip = self._clip(video)
        return Sample(clip.frames[frame], f"{video}/{frame:05d}", instances=clip.instances[frame])

    def label(self, index: int) -> int | None:
        return None

    def keys(self) -> list[str]:
        return [f"{video}/{frame:05d}" for video, clip in self.clips.items() for frame in range(len(clip))]

    def files(self) -> tuple[Path, ...]:
        return ()
