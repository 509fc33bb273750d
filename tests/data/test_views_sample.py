import math
from collections import Counter

import pytest
import torch
from torchvision.transforms import v2

from asterism.data.views import ViewParameters, Views
from asterism.errors import UserError
from asterism.types import ColorJitter, ViewSpec

DRAWS = 1000


def sampled(spec: ViewSpec, height: int, width: int, count: int = DRAWS) -> list[ViewParameters]:
    """Many independent draws of one view: the views of a list share only their image."""
    views = Views([spec] * 50)
    return [view for key in range(count // 50) for view in views.sample([(height, width)], [key])[0]]


def assert_same_distribution(ours: list[float], theirs: list[float]) -> None:
    """Two-sample Kolmogorov–Smirnov test at a level of one in a thousand."""
    a, b = torch.tensor(ours).sort().values, torch.tensor(theirs).sort().values
    places = torch.cat((a, b))
    share_a = torch.searchsorted(a, places, right=True) / len(a)
    share_b = torch.searchsorted(b, places, right=True) / len(b)
    assert (share_a - share_b).abs().max() < 1.95 * math.sqrt(1 / len(a) + 1 / len(b))


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (375, 500, (0.25, 1.0), (3 / 4, 4 / 3)),
        (375, 500, (0.05, 0.25), (3 / 4, 4 / 3)),
        (100, 400, (0.5, 1.0), (0.5, 1.5)),  # often falls back to the centre
        (400, 100, (0.5, 1.0), (0.7, 2.0)),
        (64, 64, (0.08, 1.0), (1.0, 1.0)),
        (64, 80, (0.1, 0.3), (0.5, 1.0)),  # tall, so that width and height cannot be exchanged
    ],
)
def test_crops_are_distributed_like_torchvision(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    ours = [view.crop for view in sampled(ViewSpec(size=32, scale=scale, ratio=ratio), height, width)]
    transform = v2.RandomResizedCrop(32, scale=scale, ratio=ratio)
    blank = torch.zeros(3, height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = [transform.make_params([blank]) for _ in range(DRAWS)]
    for name in ("top", "left", "height", "width"):
        assert_same_distribution([float(getattr(c, name)) for c in ours], [float(c[name]) for c in theirs])
    assert_same_distribution([c.height * c.width for c in ours], [c["height"] * c["width"] for c in theirs])
    assert_same_distribution([c.width / c.height for c in ours], [c["width"] / c["height"] for c in theirs])


def test_adjustments_are_distributed_like_torchvision() -> None:
    jitter = ColorJitter(brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1, probability=1.0)
    ours = [dict(view.colors.adjustments) for view in sampled(ViewSpec(size=8, jitter=jitter), 20, 20)]
    transform = v2.ColorJitter(0.4, 1.5, 0.2, 0.1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = [transform.make_params([]) for _ in range(DRAWS)]
    names = ("brightness", "contrast", "saturation", "hue")
    for name in names:
        assert_same_distribution([drawn[name] for drawn in ours], [drawn[f"{name}_factor"] for drawn in theirs])
    correlation = torch.corrcoef(torch.tensor([[drawn[name] for drawn in ours] for name in names])) - torch.eye(4)
    assert correlation.abs().max() < 4 / math.sqrt(DRAWS)


def test_every_order_of_adjustments_is_equally_likely() -> None:
    spec = ViewSpec(size=8, jitter=ColorJitter(probability=1.0))
    orders = Counter(tuple(name for name, _ in view.colors.adjustments) for view in sampled(spec, 20, 20))
    assert len(orders) == 24
    expected = DRAWS / 24
    chi_squared = sum((count - expected) ** 2 / expected for count in orders.values())
    assert chi_squared < 50  # 23 degrees of freedom: one in a thousand


def test_events_have_their_probabilities_and_are_independent() -> None:
    jitter = ColorJitter(probability=0.8)
    spec = ViewSpec(size=8, flip=0.3, jitter=jitter, grayscale=0.2, blur=0.5, solarize=0.1, blur_sigma=(0.5, 3))
    views = sampled(spec, 30, 40)
    colors = [view.colors for view in views]
    events = torch.tensor(
        [
            [view.crop.flip for view in views],
            [bool(each.adjustments) for each in colors],
            [each.grayscale for each in colors],
            [each.blur_sigma is not None for each in colors],
            [each.solarize_threshold is not None for each in colors],
        ]
    ).float()
    expected = torch.tensor([0.3, 0.8, 0.2, 0.5, 0.1])
    error = (expected * (1 - expected) / DRAWS).sqrt()
    assert ((events.mean(1) - expected).abs() < 4 * error).all()
    correlation = torch.corrcoef(events) - torch.eye(5)
    assert correlation.abs().max() < 4 / math.sqrt(DRAWS)
    sigmas = [each.blur_sigma for each in colors if each.blur_sigma is not None]
    assert_same_distribution(sigmas, [0.5 + 2.5 * step / DRAWS for step in range(DRAWS)])


def test_parameters_are_a_function_of_the_key_alone() -> None:
    specs = [ViewSpec(size=16, jitter=ColorJitter(), blur=0.5), ViewSpec(size=8)]
    state = torch.random.get_rng_state()
    first = [Views(specs).sample([(40, 50)], [key])[0] for key in (0, 1, -5, 2**62)]
    torch.manual_seed(17)
    second = [Views(specs).sample([(40, 50)], [key])[0] for key in (0, 1, -5, 2**62)]
    assert first == second
    torch.random.set_rng_state(state)
    Views(specs).sample([(40, 50)], [3])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len(set(first)) == 4


def test_a_view_does_not_depend_on_those_after_it() -> None:
    spec = ViewSpec(size=16, jitter=ColorJitter())
    assert Views([spec]).sample([(40, 50)], [9])[0][0] == Views([spec, spec, spec]).sample([(40, 50)], [9])[0][0]
    first, second, _ = Views([spec, spec, spec]).sample([(40, 50)], [9])[0]
    assert first != second


def test_nested_crops_take_their_share_of_the_parent() -> None:
    specs = [ViewSpec(size=8, scale=(0.3, 0.6), flip=1), ViewSpec(size=8, scale=(0.5, 0.7), inside=0, flip=0)]
    for key in range(60):
        outer, inner = Views(specs).sample([(400, 500)], [key])[0]
        share = inner.crop.height * inner.crop.width / (outer.crop.height * outer.crop.width)
        assert 0.48 < share < 0.72
        assert outer.crop.flip
        assert not inner.crop.flip


def test_same_place_shares_crop_and_flip_but_not_colours() -> None:
    spec = ViewSpec(size=16, jitter=ColorJitter(probability=1), blur=1)
    views = Views([spec, spec.model_copy(update={"same_place": 0, "size": 8})])
    for key in range(50):
        first, second = views.sample([(60, 80)], [key])[0]
        assert first.crop == second.crop
        assert first.colors != second.colors
        assert (first.size, second.size) == (16, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": (0.9, 0.2)}, "scale = "),
        ({"scale": (0.5, 1.2)}, "scale.1 = 1.2"),
        ({"ratio": (0.0, 1.0)}, "ratio.0 = 0"),
        ({"blur_sigma": (0.0, 2.0)}, "blur_sigma.0 = 0"),
        ({"jitter": {"hue": 0.6}}, "jitter.hue = 0.6"),
    ],
)
def test_impossible_views_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ViewSpec.parse({"size": 8} | changes)


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        (1, {"inside": 1}, "view 1 .*inside = 1"),
        (1, {"inside": 0, "same_place": 0}, "view 1 .*both inside and same_place"),
        (0, {"inside": 0}, "the first view cannot refer to another"),
    ],
)
def test_views_refer_to_earlier_ones(place: int, changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Views([*[ViewSpec(size=8)] * place, ViewSpec(size=8, **changes)])
