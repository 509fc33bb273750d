"""Sliding windows: against a slow loop, against the whole image, for any size."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.finetuning.segmentation.windows import Prepared, label_maps, starts
from tests.finetuning.segmentation.drawn import sample
from tests.finetuning.segmentation.tiny_heads import segment


def network(images: Tensor) -> Tensor:
    """Logits that depend on the place in the window, so that windows disagree where they overlap."""
    ramp = torch.linspace(-1, 1, images.shape[3] // 4)
    return F.avg_pool2d(images, 4) * (1 + ramp)


@pytest.mark.parametrize(("length", "expected"), [(8, [0]), (5, [0]), (9, [0, 1]), (14, [0, 6]), (15, [0, 6, 7])])
def test_windows_begin_every_stride_and_end_with_the_image(length: int, expected: list[int]) -> None:
    assert starts(length, 8, 6) == expected


def test_logits_are_averaged_over_windows() -> None:
    draw = torch.Generator().manual_seed(0)
    image = torch.randn(3, 20, 28, generator=draw)
    total, count = torch.zeros(3, 20, 28), torch.zeros(20, 28)
    for top in (0, 6, 8):
        for left in (0, 6, 12, 16):
            window = image[None, :, top : top + 12, left : left + 12]
            logits = F.interpolate(network(window), (12, 12), mode="bilinear", align_corners=False)
            total[:, top : top + 12, left : left + 12] += logits[0]
            count[top : top + 12, left : left + 12] += 1
    expected = (total / count).argmax(0)
    assert int(count.max()) > 2
    (found,) = label_maps([Prepared(image, (20, 28), (20, 28))], network, 12, 6)
    assert torch.equal(found.long(), expected)


def test_images_share_batches_without_touching_each_other() -> None:
    images = [torch.randn(3, 12 + 4 * n, 24, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    prepared = [Prepared(image, (image.shape[1], 24), (31, 17)) for image in images]
    together = list(label_maps(prepared, network, 12, 8))
    alone = [next(label_maps([each], network, 12, 8)) for each in prepared]
    assert [each.shape for each in together] == [(31, 17)] * 5
    assert all(torch.equal(one, two) for one, two in zip(together, alone, strict=True))


@pytest.mark.parametrize("head", ["linear", "fpn"])
def test_one_window_is_the_whole_image(head: str) -> None:
    images = [sample(number, 30, 30).image for number in range(2)]
    torch.manual_seed(0)
    windows = segment(head).eval()
    whole = segment(head, inference="whole").eval()
    whole.load_state_dict(windows.state_dict())
    for one, two in zip(windows.predict(images), whole.predict(images), strict=True):
        assert torch.equal(one.mask, two.mask)


@pytest.mark.parametrize("inference", ["windows", "whole"])
@pytest.mark.parametrize("size", [(40, 17), (16, 90), (9, 8), (8, 400)])
def test_predictions_have_the_size_of_their_images(inference: str, size: tuple[int, int]) -> None:
    task = segment("upernet", inference=inference).eval()
    images = [torch.zeros(3, *size, dtype=torch.uint8), torch.zeros(3, 16, 16, dtype=torch.uint8)]
    assert [tuple(each.mask.shape) for each in task.predict(images)] == [size, (16, 16)]
