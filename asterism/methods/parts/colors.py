"""Colour augmentation of views: settings shared by all methods with several views."""

from __future__ import annotations

from asterism.methods.base import MethodConfig
from asterism.ranges import PositiveRange, Share
from asterism.types import ColorJitter, ViewSpec


class ColorsConfig(MethodConfig):
    """Colours that differ between views are uninformative, so the network learns to rely on other cues."""

    jitter: ColorJitter | None = ColorJitter()  # None if colours are informative, or images are grey
    grayscale: Share = 0.2  # probability
    blur_sigma: PositiveRange = (0.1, 2.0)  # in pixels of the view: lower it for views much below 224

    def colored(self, view: ViewSpec) -> ViewSpec:
        changes = {"jitter": self.jitter, "grayscale": self.grayscale, "blur_sigma": self.blur_sigma}
        return view.model_copy(update=changes)
