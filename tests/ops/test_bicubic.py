import pytest
import torch
import torch.nn.functional as F

from asterism.ops.bicubic import antialiased_matrix, plain_matrix


@pytest.mark.parametrize("old", [1, 2, 4, 7])
@pytest.mark.parametrize("new", [1, 2, 3, 7, 12])
def test_matrices_equal_torchs_interpolation(old: int, new: int) -> None:
    # Two columns: for one, torch 2.15 returns the first antialiased row everywhere.
    line = torch.randn(1, 1, old, 1, generator=torch.Generator().manual_seed(old)).expand(-1, -1, -1, 2).contiguous()
    centres, step = torch.arange(new) + 0.5, torch.tensor(old / new)
    for matrix, antialias in ((antialiased_matrix, True), (plain_matrix, False)):
        usual = F.interpolate(line, (new, 2), mode="bicubic", antialias=antialias)
        torch.testing.assert_close(matrix(centres, old, step) @ line[0, 0], usual[0, 0], atol=5e-6, rtol=0)


@pytest.mark.parametrize("new", [3, 5, 9])
def test_another_step_moves_the_samples(new: int) -> None:
    """DINO resamples with the step old/(new + 0.1)."""
    line = torch.randn(1, 1, 4, 1, generator=torch.Generator().manual_seed(1))
    usual = F.interpolate(line, scale_factor=((new + 0.1) / 4, 1.0), mode="bicubic").flatten()
    ours = plain_matrix(torch.arange(new) + 0.5, 4, torch.tensor(4 / (new + 0.1))) @ line.flatten()
    torch.testing.assert_close(ours, usual, atol=5e-6, rtol=0)
    exact = plain_matrix(torch.arange(new) + 0.5, 4, torch.tensor(4 / new)) @ line.flatten()
    assert (ours - exact).abs().max() > 1e-3
