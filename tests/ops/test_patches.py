import torch

from asterism.ops.patches import patchify, standardize, unpatchify


def test_patch_vectors_run_over_row_column_channel() -> None:
    pixels = torch.arange(2 * 3 * 4 * 6.0).reshape(2, 3, 4, 6)
    patches = patchify(pixels, 2)
    assert patches.shape == (2, 6, 12)
    for image in range(2):
        for patch in range(6):
            row, column = divmod(patch, 3)
            vector = [
                pixels[image, channel, 2 * row + i, 2 * column + j]
                for i in (0, 1)
                for j in (0, 1)
                for channel in range(3)
            ]
            assert patches[image, patch].equal(torch.stack(vector))
    assert unpatchify(patches, (2, 3), 2).equal(pixels)


def test_standardising_is_invertible_and_constant_patches_stay_finite() -> None:
    patches = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0)) * 3 + 1
    patches[0, 0] = 0.7
    normal, mean, deviation = standardize(patches)
    assert normal.isfinite().all()
    torch.testing.assert_close(normal[1].square().sum(dim=-1), torch.full((5,), 11.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(normal * deviation + mean, patches)
