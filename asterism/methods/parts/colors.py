"""How the colours of views change: settings that all methods with several views share."""

from __future__ import annotations

from pydantic import Field

from asterism.methods.base import MethodConfig
from asterism.types import ColorJitter, ViewSpec


class ColorsConfig(MethodConfig):
    """Colours that differ between views carry no meaning, and a network learns to look for what does."""

    jitter: ColorJitter | None = ColorJitter()  # None where colours carry the meaning, or there are none
    grayscale: float = Field(default=0.2, ge=0, le=1)  # probability
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # in pixels of the view: lower it for views much below 224

    def colored(self, view: ViewSpec) -> ViewSpec:
        changes = {"jitter": self.jitter, "grayscale": self.grayscale, "blur_sigma": self.blur_sigma}
        return view.model_copy(update=changes)
