"""From one decoded image to its views."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from asterism.data.views.color import recolor
from asterism.data.views.crop import cut, cut_labels, interleaved
from asterism.data.views.sample import ViewParameters, check_specs, sample_views
from asterism.types import ViewSpec


class Views:
    """The views a method asked for: `sample` draws their parameters, `apply` and `apply_labels` carry them out.

    Nothing here keeps state, so one instance may serve any number of images, threads and processes.
    """

    def __init__(self, specs: Sequence[ViewSpec]) -> None:
        check_specs(specs)
        self.specs = tuple(specs)

    def sample(self, image_height: int, image_width: int, key: int) -> tuple[ViewParameters, ...]:
        """The parameters of every view: a pure function of the specifications, the image's size and the key."""
        return sample_views(self.specs, image_height, image_width, key)

    def apply(
        self, image: UInt8[Tensor, "3 h w"], parameters: Sequence[ViewParameters]
    ) -> list[UInt8[Tensor, "3 _ _"]]:
        """The pixels of every view. Fastest with an image that lies in memory as decoded, [h, w, 3] permuted."""
        image = interleaved(image[None])[0]
        return [recolor(cut(image, view.crop, view.size), view.colors) for view in parameters]

    @property
    def with_labels(self) -> tuple[int, ...]:
        """The views that are to come with the label of every pixel, by their numbers."""
        return tuple(number for number, spec in enumerate(self.specs) if spec.segments)

    def apply_labels(
        self, labels: Shaped[Tensor, "h w"], parameters: Sequence[ViewParameters]
    ) -> list[Shaped[Tensor, "_ _"]]:
        """The labels of the views `with_labels`, cut like their pixels, each taking the label under its centre."""
        chosen = [parameters[number] for number in self.with_labels]
        return [cut_labels(labels, view.crop, view.size) for view in chosen]

    def geometry(self, parameters: Sequence[ViewParameters]) -> Float[Tensor, "v 7"]:
        """Where every view was cut: one row per view, read by `ops.geometry.geometry_from_rows`."""
        return torch.tensor(
            [
                (
                    view.crop.top,
                    view.crop.left,
                    view.crop.height,
                    view.crop.width,
                    view.image_height,
                    view.image_width,
                    view.crop.flip,
                )
                for view in parameters
            ],
            dtype=torch.float32,
        )
