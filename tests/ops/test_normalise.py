import torch

from asterism.ops.normalise import denormalise, normalise

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)


def test_denormalise_inverts_normalise() -> None:
    images = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    pixels = normalise(images, MEAN, STD)
    torch.testing.assert_close(pixels[:, 2], (images[:, 2] - 0.3) / 2)
    torch.testing.assert_close(denormalise(pixels, MEAN, STD), images)


def test_bytes_are_levels_of_255_and_stay_as_they_are() -> None:
    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)
    before = images.clone()
    assert torch.equal(normalise(images, MEAN, STD), normalise(images.float() / 255, MEAN, STD))
    assert torch.equal(images, before)
