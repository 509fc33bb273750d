import math

import pytest
import torch
from torch import Tensor

from asterism.images.palette import palette
from asterism.ops.video_metrics import boundaries, dilated
from asterism.viz import mask_overlay
from asterism.viz.mask_overlay import overlay


def at_once(image: Tensor, mask: Tensor) -> Tensor:
    """The whole picture in one piece, with one region per object."""
    colour = torch.tensor(palette(int(mask.max()) + 1), dtype=torch.float32)[mask].permute(2, 0, 1)
    radius = max(1, round(math.hypot(*mask.shape) / 600))
    regions = mask == torch.unique(mask)[:, None, None]
    outline = dilated(boundaries(regions).any(dim=0)[None], radius)[0]
    inside, pixels = mask > 0, image.float()
    tinted = torch.where(inside, 0.55 * pixels + 0.45 * colour, pixels)
    edge = torch.where(inside, 0.75 * colour + 0.25 * 255, 0.5 * pixels)
    return torch.where(outline, edge, tinted).round().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("pixels", [1, 700, 5000, 1 << 22])
def test_bands_do_not_show(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_overlay, "_PIXELS_AT_ONCE", pixels)
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, 90, 70), dtype=torch.uint8, generator=generator)
    mask = torch.randint(0, 4, (9, 7), generator=generator).repeat_interleave(10, 0).repeat_interleave(10, 1)
    assert torch.equal(overlay(image, mask), at_once(image, mask))
    assert torch.equal(overlay(image, mask.to(torch.uint8)), at_once(image, mask))
