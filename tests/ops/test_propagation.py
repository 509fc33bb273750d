import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops import propagation
from asterism.ops.propagation import carry_mask, class_shares, hard_labels, largest_upsampled, propagate, resize_labels
from asterism.ops.random import generator

SETTINGS = {"topk": 4, "radius": 1, "temperature": 0.2}


def unit_rows(key: int, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator(key)), dim=-1)


def slow(queries: Tensor, keys: Tensor, masks: Tensor, topk: int, radius: int, temperature: float) -> Tensor:
    """One patch at a time."""
    _, classes, height, width = masks.shape
    result = torch.zeros(classes, height, width)
    for y in range(height):
        for x in range(width):
            near = [
                (math.exp(float(queries[y * width + x] @ frame[v * width + u]) / temperature), mask[:, v, u])
                for frame, mask in zip(keys, masks, strict=True)
                for v in range(height)
                for u in range(width)
                if max(abs(v - y), abs(u - x)) <= radius
            ]
            near.sort(key=lambda pair: -pair[0])
            least = near[min(topk, len(near)) - 1][0]
            kept = [(weight, mask) for weight, mask in near if weight >= least]
            result[:, y, x] = sum(weight * mask for weight, mask in kept) / sum(weight for weight, _ in kept)
    return result


@pytest.mark.parametrize("budget", [1, 1 << 24])
@pytest.mark.parametrize("radius", [0, 1, 9])
def test_a_frame_gets_the_masks_of_its_most_similar_neighbours(
    budget: int, radius: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(propagation, "_SIMILARITIES", budget)
    queries, keys = unit_rows(1, 15, 6), unit_rows(2, 3, 15, 6)
    masks = torch.rand(3, 2, 3, 5, generator=generator(3))
    ours = carry_mask(queries, keys, masks, topk=4, radius=radius, temperature=0.2)
    torch.testing.assert_close(ours, slow(queries, keys, masks, 4, radius, 0.2))


def test_equally_similar_patches_all_count() -> None:
    same = unit_rows(1, 1, 4).expand(9, 4)
    masks = torch.arange(9.0).view(1, 1, 3, 3)
    assert carry_mask(same, same[None], masks, topk=1, radius=2, temperature=0.1)[0, 1, 1] == pytest.approx(4.0)


def test_the_context_is_the_first_frame_and_the_last_few() -> None:
    frames, first = unit_rows(4, 6, 12, 5), torch.rand(2, 3, 4, generator=generator(5))
    masks = [first, *propagate(frames, first, context=2, **SETTINGS)]
    expected = carry_mask(frames[5], frames[[0, 3, 4]], torch.stack([masks[i] for i in (0, 3, 4)]), **SETTINGS)
    assert len(masks) == 6
    torch.testing.assert_close(masks[5], expected)


def test_classes_are_stretched_before_they_compete() -> None:
    weak = torch.tensor([[0.9, 0.8], [0.9, 0.9]])  # the background's minimum still exceeds the object's maximum
    labels = hard_labels(torch.stack([weak, 1 - weak]), (2, 2))
    assert labels.tolist() == [[0, 1], [0, 0]]


def test_labels_take_the_nearest_centre() -> None:
    assert resize_labels(torch.tensor([[1, 2]]), (2, 4)).tolist() == [[1, 1, 2, 2]] * 2
    assert resize_labels(torch.tensor([[1, 2, 3]]), (1, 1)).tolist() == [[2]]


def test_small_objects_keep_their_share_of_a_cell() -> None:
    labels = torch.tensor([[0, 1, 9, 9], [0, 0, 9, 9]])
    assert class_shares(labels, 2, (1, 2)).tolist() == [[[0.75, 0.0]], [[0.25, 0.0]]]


def test_upsampling_in_bands_equals_upsampling_at_once() -> None:
    shares = torch.rand(5, 7, 9, generator=torch.Generator().manual_seed(0))
    for size in [(61, 83), (7, 9), (5, 200), (14, 3)]:
        whole = F.interpolate(shares[None], size, mode="bilinear", align_corners=False)[0].argmax(0)
        for numbers in (1, 5 * size[1] * 3, 1 << 24):
            assert torch.equal(largest_upsampled(shares, size, numbers).long(), whole)
