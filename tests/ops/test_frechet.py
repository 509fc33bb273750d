import pytest
import torch

from asterism.ops.frechet import Moments, frechet_distance


def _moments(rows: torch.Tensor, size: int) -> Moments:
    moments = Moments()
    for batch in rows.split(size):
        moments.add(batch)
    return moments


def test_batching_does_not_matter_and_offsets_cost_no_precision() -> None:
    rows = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e6
    moments = _moments(rows, 7)
    torch.testing.assert_close(moments.mean, rows.mean(0))
    torch.testing.assert_close(moments.covariance, torch.cov(rows.mT), rtol=1e-7, atol=1e-9)


def test_distance_of_a_shift_and_of_a_scale() -> None:
    rows = torch.randn(300, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = _moments(rows, 100)
    assert frechet_distance(own, own) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(own, _moments(rows + 2, 100)) == pytest.approx(4 * 4)
    # N(0, C) and N(0, 9 C): tr(C + 9C - 2·3C) = 4 tr C
    centred = rows - rows.mean(0)
    expected = 4 * float(torch.cov(rows.mT).trace())
    assert frechet_distance(_moments(centred, 300), _moments(3 * centred, 300)) == pytest.approx(expected)


def test_a_covariance_without_full_rank_and_one_with_it_agree_with_the_matrix_root() -> None:
    """Fewer rows than channels need eigenvectors, more use Cholesky's factor; both are tr (C₁ C₂)^½ by scipy."""
    from scipy.linalg import sqrtm

    for rows in (5, 40):
        source = torch.Generator().manual_seed(rows)
        a, b = Moments(), Moments()
        a.add(torch.randn(rows, 8, generator=source))
        b.add(2 * torch.randn(30, 8, generator=source) + 1)
        root = sqrtm((a.covariance @ b.covariance).numpy())
        expected = float((a.mean - b.mean).square().sum() + (a.covariance + b.covariance).trace())
        assert frechet_distance(a, b) == pytest.approx(expected - 2 * float(root.trace().real), rel=1e-6)
