import torch

from asterism.ops.normalise import denormalise, normalise


def test_denormalise_inverts_normalise() -> None:
    images = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    pixels = normalise(images, mean, std)
    torch.testing.assert_close(pixels[:, 2], (images[:, 2] - 0.3) / 2)
    torch.testing.assert_close(denormalise(pixels, mean, std), images)
