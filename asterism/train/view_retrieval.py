"""Whether a view of an image retrieves another view of it: a measure of learning that needs no labels."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.data import Source, Subset, Views
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.ops import streams
from asterism.ops.random import fold, generator
from asterism.types import ViewSpec

_IMAGES = 512


class ViewRetrieval:
    """Two views of each of some images, drawn once; each first view has to find its second view among all images."""

    name = "view_retrieval"

    def __init__(self, source: Source, spec: ViewSpec) -> None:
        key = fold(streams.Monitor.VIEW_RETRIEVAL, len(source))
        order = torch.randperm(len(source), generator=generator(key)).tolist()
        self._source = Subset(source, sorted(order[:_IMAGES]))
        self._views = Views((_alone(spec),))
        self._pairs: list[UInt8[Tensor, "n 3 s s"]] = []

    def accuracy(self, encoder: Encoder) -> float:
        """How often the nearest second view is of the same image, in percent."""
        if not self._pairs:
            self._pairs = self._read()
        queries, bank = (F.normalize(_embed(encoder, views), dim=1) for views in self._pairs)
        found = (queries @ bank.T).argmax(dim=1)
        return 100 * float((found == torch.arange(len(found))).float().mean())

    def _read(self) -> list[UInt8[Tensor, "n 3 s s"]]:
        images = []
        for place in range(len(self._source)):
            try:
                images.append(self._source[place].image)
            except BadImage:
                continue
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        keys = [[fold(number, place) for place in range(len(images))] for number in range(2)]
        return [self._views.apply(images, self._views.sample(sizes, some))[0] for some in keys]


def _alone(spec: ViewSpec) -> ViewSpec:
    """The view without its links to other views and to labels."""
    return spec.model_copy(update={"inside": None, "same_place": None, "segments": False})


@torch.no_grad()
def _embed(encoder: Encoder, images: UInt8[Tensor, "n 3 s s"]) -> Tensor:
    return torch.cat([encoder.encode_cls(part).float().cpu() for part in torch.split(images, 128)])
