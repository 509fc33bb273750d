import sys
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from asterism.data.views import Colors, Views, color, pipeline
from asterism.data.views.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    solarize,
    to_uint8,
)
from asterism.data.views.pipeline import compiled_recolor
from asterism.types import ColorJitter, ViewSpec
from tests.data.photographs import differences, from_pil, photograph, to_pil

PICTURES = [photograph(seed, 72, 96) for seed in range(3)] + [
    torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)),
    photograph(3, 32, 32)[:1].expand(3, -1, -1).contiguous(),  # grey in colour
    torch.zeros(3, 8, 8, dtype=torch.uint8),
    torch.full((3, 8, 8), 255, dtype=torch.uint8),
]


Recolor = Callable[[Tensor, Sequence[Colors]], None]


@pytest.fixture(params=["torch", "numba"])
def recolor_(request: pytest.FixtureRequest) -> Recolor:
    """Both implementations of `pipeline.recolor_`."""
    if request.param == "torch":
        return color.recolor_
    pytest.importorskip("numba")
    assert compiled_recolor() is not None
    return pipeline.recolor_


def recolored(recolor_: Recolor, picture: Tensor, colors: Colors) -> Tensor:
    pixels = picture[None].clone()
    recolor_(pixels, [colors])
    return pixels[0]


@pytest.mark.parametrize(
    ("ours", "theirs", "factors"),
    [
        (adjust_brightness, TF.adjust_brightness, (0.0, 0.6, 0.97, 1.0, 1.4)),
        (adjust_contrast, TF.adjust_contrast, (0.0, 0.6, 0.97, 1.0, 1.4)),
        (adjust_saturation, TF.adjust_saturation, (0.0, 0.8, 0.97, 1.0, 1.4, 2.0)),
    ],
)
def test_blends_are_within_one_level_of_torchvision(
    ours: Callable[[Tensor, list[float]], Tensor], theirs: Callable[..., Tensor], factors: tuple[float, ...]
) -> None:
    for picture in PICTURES:
        for factor in factors:
            changed = to_uint8(ours(picture[None].float(), [factor]))[0]
            assert differences(changed, theirs(picture, factor)).max() <= 1
            assert differences(changed, from_pil(theirs(to_pil(picture), factor))).max() <= 1


@pytest.mark.parametrize("factor", [-0.5, -0.4, -0.17, -0.1, 0.0, 0.04, 0.1, 1 / 6, 0.25, 0.35, 0.5])
def test_hue_is_within_one_level_of_torchvision_on_tensors(factor: float) -> None:
    for picture in PICTURES:
        turned = to_uint8(adjust_hue(picture[None].float(), [factor]))[0]
        assert differences(turned, TF.adjust_hue(picture, factor)).max() <= 1


def test_grayscale_is_within_one_level_of_torchvision(recolor_: Recolor) -> None:
    for picture in PICTURES:
        gray = recolored(recolor_, picture, Colors(grayscale=True))
        assert differences(gray, TF.rgb_to_grayscale(picture, 3)).max() <= 1
        assert differences(gray, from_pil(TF.rgb_to_grayscale(to_pil(picture), 3))).max() <= 1


@pytest.mark.parametrize("threshold", [0, 1, 100, 128, 255])
def test_solarize_equals_torchvision(threshold: int) -> None:
    for picture in PICTURES:
        assert torch.equal(solarize(picture[None], [threshold])[0], TF.solarize(picture, threshold))
        assert torch.equal(solarize(picture[None], [threshold])[0], from_pil(TF.solarize(to_pil(picture), threshold)))


def test_adjustments_follow_their_order(recolor_: Recolor) -> None:
    adjustments = (("hue", 0.1), ("saturation", 1.2), ("contrast", 1.4), ("brightness", 0.7))
    picture = PICTURES[0]
    forward = recolored(recolor_, picture, Colors(adjustments))
    backward = recolored(recolor_, picture, Colors(adjustments[::-1]))
    assert differences(forward, backward).max() > 8

    chained = picture
    for change, factor in zip(
        (TF.adjust_hue, TF.adjust_saturation, TF.adjust_contrast, TF.adjust_brightness),
        (0.1, 1.2, 1.4, 0.7),
        strict=True,
    ):
        chained = change(chained, factor)
    assert differences(forward, chained).max() <= 4  # torchvision loses up to a level in each of the four


def test_all_changes_together_agree_with_torchvision(recolor_: Recolor) -> None:
    picture = PICTURES[1]
    colors = Colors((("contrast", 1.2),), grayscale=True, blur_sigma=1.0, solarize_threshold=128)
    chained = TF.rgb_to_grayscale(TF.adjust_contrast(picture, 1.2), 3)
    chained = TF.solarize(TF.gaussian_blur(chained, [7, 7], [1.0, 1.0]), 128)
    difference = differences(recolored(recolor_, picture, colors), chained)
    near_threshold = difference > 3  # a level on the other side of the threshold is inverted, so it jumps
    assert near_threshold.float().mean() < 0.02


def test_without_colour_changes_pixels_are_never_written(recolor_: Recolor) -> None:
    picture = photograph(5, 20, 30)
    before = picture.clone()
    assert torch.equal(recolored(recolor_, picture, Colors()), before)
    recolored(recolor_, picture, Colors((("brightness", 0.5),), grayscale=True, blur_sigma=1.0, solarize_threshold=10))
    assert torch.equal(picture, before)


@pytest.mark.parametrize("size", [8, 32, 300])
def test_a_view_does_not_depend_on_others_in_its_batch(recolor_: Recolor, size: int) -> None:
    jitter = ViewSpec(size=size, jitter=ColorJitter(), grayscale=0.3, blur=0.5, blur_sigma=(0.1, 2.0), solarize=0.3)
    pictures = torch.stack([photograph(seed, size, size) for seed in range(40)])
    colors = [view.colors for (view,) in Views([jitter]).sample([(size, size)] * 40, range(40))]
    together = pictures.clone()
    recolor_(together, colors)
    for picture, own, expected in zip(pictures, colors, together, strict=True):
        assert torch.equal(recolored(recolor_, picture, own), expected)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3), (5, 64), (32, 32), (97, 40)])
def test_compiled_and_not_differ_by_a_level_at_most(height: int, width: int) -> None:
    """Large blurs reach beyond both borders; hues turn by up to half a circle."""
    pytest.importorskip("numba")
    spec = ViewSpec(
        size=32,
        jitter=ColorJitter(hue=0.5, brightness=0.8),
        grayscale=0.3,
        blur=0.7,
        blur_sigma=(0.1, 4.0),
        solarize=0.3,
    )
    count = 100
    pictures = torch.stack([photograph(seed, height, width) for seed in range(count)])
    colors = [view.colors for (view,) in Views([spec]).sample([(32, 32)] * count, range(count))]
    expected, found = pictures.clone(), pictures.clone()
    color.recolor_(expected, colors)
    pipeline.recolor_(found, colors)
    solarized = torch.tensor([view.solarize_threshold is not None for view in colors])
    difference = differences(found, expected)
    assert difference[~solarized].max() <= 1
    assert (difference > 0).float().mean() < 1e-3  # at a threshold for inversion a level becomes another
    assert differences(found, pictures).mean() > 10


@pytest.mark.parametrize("threshold", [0, 1, 128, 255])
def test_compiled_inversion_equals_torchvision(threshold: int) -> None:
    pytest.importorskip("numba")
    for picture in PICTURES:
        changed = recolored(pipeline.recolor_, picture, Colors(solarize_threshold=threshold))
        assert torch.equal(changed, TF.solarize(picture, threshold))


@pytest.fixture
def another_start() -> Iterator[None]:
    """Compiled code is looked for again, now and after the test."""
    compiled_recolor.cache_clear()
    yield
    compiled_recolor.cache_clear()


@pytest.mark.usefixtures("another_start")
def test_without_numba_torch_changes_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compiled_recolor() is None
    colors = Colors((("contrast", 1.3),), blur_sigma=1.0)
    expected = recolored(color.recolor_, PICTURES[0], colors)
    assert torch.equal(recolored(pipeline.recolor_, PICTURES[0], colors), expected)


@pytest.mark.usefixtures("another_start")
def test_a_compiler_that_fails_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")

    def fails(*_: object, **__: object) -> None:
        raise ValueError("no such instruction")

    monkeypatch.setattr("numba.njit", fails)
    monkeypatch.delitem(sys.modules, "asterism.data.views.compiled_colors", raising=False)
    with pytest.warns(UserWarning, match="slower now: no such instruction"):
        recolored(pipeline.recolor_, PICTURES[0], Colors(grayscale=True))
    recolored(pipeline.recolor_, PICTURES[0], Colors(grayscale=True))
