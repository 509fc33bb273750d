"""Masks propagated through videos with frozen patch features: whether features of an object are stable over time.

The protocol of DINO on DAVIS (see `features/mask_tracking.py`): the true mask of the first frame is given. J is the
overlap of regions, F the agreement of outlines within ⌈0.008 · diagonal⌉ pixels. Both are averaged over the frames of
each object except the first and the last, then over objects. Nothing is trained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from asterism.data import Subset
from asterism.data.parts import DataChoice, Parts
from asterism.data.sources.videos import VideoSource, first_videos, open_videos
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import patch_baselines
from asterism.features.mask_tracking import Tracking, follow_objects, input_size
from asterism.images.bad_image import BadImage
from asterism.images.masks import VOID
from asterism.nn.encoder import Encoder
from asterism.ops.video_metrics import TOLERANCE, boundary_similarity, region_similarity
from asterism.ranges import Count
from asterism.viz.bar import Bar

_RECALL = 0.5  # a frame counts as found above this J or F
_FEWEST_FRAMES = 3  # the first is given and the last does not count


class VideoConfig(Tracking, ProtocolConfig):
    """Constants of the protocol; the defaults are those of the papers."""

    videos: Count | None = None  # maximum number of videos, from the first; None: all
    batch_size: Count = 8  # frames encoded at a time; does not change the result


class Video(Evaluation):
    """J, F and their mean, in percent, and the mean if the first mask is kept for all frames."""

    Config = VideoConfig
    config: VideoConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        assert isinstance(config, VideoConfig)
        found = open_videos(choice.path, choice.test_split)
        frames = found if config.videos is None else first_videos(found, config.videos)
        given = Subset(frames, [clip.start for clip in frames.clips.values()])
        notes = ["nothing is trained: the true mask of each video's first frame is given"]
        if config.videos is not None and config.videos > len(frames.clips):
            notes.append(f"{config.videos} videos were requested, but {frames.name} has {len(frames.clips)}")
        return Parts(given, frames, tuple(notes))

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return ["j_and_f", "j", "f", "j_recall", "f_recall", "j_and_f_first_mask_kept"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        source = self.parts.test
        assert isinstance(source, VideoSource)
        for name, clip in source.clips.items():
            if len(clip) < _FEWEST_FRAMES:
                raise UserError(
                    f"the video {name} of {source.name} has {len(clip)} frames; at least {_FEWEST_FRAMES} are needed, "
                    "as the first is given and the last does not count"
                )
        scores = []
        with Bar(source.name, len(source)) as bar:
            for name, clip in source.clips.items():
                scores.append(self._scores(encoder, source, name, clip, bar))
        j, f, kept_j, kept_f, found_j, found_f = torch.cat(scores, dim=1)
        yield "j_and_f", _percent((j + f) / 2)
        yield "j", _percent(j)
        yield "f", _percent(f)
        yield "j_recall", _percent(found_j)
        yield "f_recall", _percent(found_f)
        yield "j_and_f_first_mask_kept", _percent((kept_j + kept_f) / 2)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return patch_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        frame = self.parts.train[0].image
        height, width = input_size((frame.shape[1], frame.shape[2]), encoder, self.config)
        unused = {"holdout", "seed"}
        constants = {name: value for name, value in super().constants(encoder).items() if name not in unused}
        return constants | {
            "input_of_first_video": f"{width}×{height}",
            "feature": "patch tokens after the last norm",
            "tolerance_of_f": TOLERANCE,
            "frames_left_out": "first and last",
        }

    def _scores(
        self, encoder: Encoder, source: VideoSource, name: str, clip: range, bar: Bar
    ) -> Float[Tensor, "6 objects"]:
        """J and F of each object, those of the first mask kept, and how often J and F exceed `_RECALL`: means over the
        frames that count."""
        first = _sample(source, clip[0])[1]
        objects = [number for number in torch.unique(first).tolist() if number not in (0, VOID)]
        if not objects:
            raise UserError(f"the first mask of the video {name} of {source.name} is empty: there is nothing to track")
        given = torch.where(first == VOID, 0, first)
        true_masks: deque[Tensor] = deque()

        def frames() -> Iterator[UInt8[Tensor, "3 h w"]]:
            for index in clip[:-1]:  # the last one does not count
                image, mask = _sample(source, index)
                if index != clip[0]:
                    true_masks.append(mask)
                yield image

        sums = torch.zeros(6, len(objects), dtype=torch.float64)
        for followed in follow_objects(encoder, frames(), given, self.config, batch_size=self.config.batch_size):
            true = true_masks.popleft()
            agreement = _agreement(followed.mask, true, objects)
            sums[:2] += agreement
            sums[2:4] += _agreement(given, true, objects)
            sums[4:] += agreement > _RECALL
            bar.advance(1)
        bar.advance(2)  # the first and the last
        return sums / (len(clip) - 2)


def _agreement(
    predicted: Int64[Tensor, "h w"], true: Int64[Tensor, "h w"], objects: list[int]
) -> Float[Tensor, "2 objects"]:
    """J and F of every object; void pixels of the true mask are ignored."""
    numbers, known = torch.tensor(objects)[:, None, None], true != VOID
    ours, theirs = (predicted == numbers) & known, (true == numbers) & known
    return torch.stack([region_similarity(ours, theirs), boundary_similarity(ours, theirs)])


def _sample(source: VideoSource, index: int) -> tuple[Tensor, Tensor]:
    try:
        sample = source[index]
    except BadImage as error:
        raise UserError(f"a frame of {source.name} cannot be read: {error}; fix it, or leave out its video") from None
    assert sample.instances is not None
    return sample.image, sample.instances.long()


def _percent(values: Tensor) -> float:
    return 100 * values.double().mean().item()
