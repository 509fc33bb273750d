import pytest
import torch

from asterism.ops.effective_rank import effective_rank, feature_std


def test_effective_rank_of_known_spectra():
    q, _ = torch.linalg.qr(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)))
    q = q - q.mean(0)
    q, _ = torch.linalg.qr(q)  # centred columns, orthonormal: 8 equal singular values
    assert effective_rank(q) == pytest.approx(8, abs=1e-3)
    assert effective_rank(q @ torch.diag(torch.tensor([1.0] + [0.0] * 7))) == pytest.approx(1, abs=1e-3)
    assert effective_rank(q[:, :2] @ torch.randn(2, 100)) <= 2.001
    two = q @ torch.diag(torch.tensor([3.0, 1.0] + [0.0] * 6))
    entropy = -(0.75 * torch.tensor(0.75).log() + 0.25 * torch.tensor(0.25).log())
    assert effective_rank(two) == pytest.approx(float(entropy.exp()), abs=1e-3)


def test_spread_is_one_on_the_sphere_and_zero_for_equal_rows():
    rows = torch.randn(2000, 32, generator=torch.Generator().manual_seed(0))
    assert feature_std(rows) == pytest.approx(1, abs=0.02)
    assert feature_std(rows * torch.rand(2000, 1)) == pytest.approx(float(feature_std(rows)), abs=1e-5)
    assert feature_std(rows[:1].expand(10, -1)) == pytest.approx(0, abs=1e-6)
