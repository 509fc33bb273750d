import pytest
import torch

from asterism.ops.orthogonal import POLYNOMIALS, orthogonalize


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def with_values(u_and_v: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Matrices with the singular vectors of some others."""
    u, _, v = torch.linalg.svd(u_and_v, full_matrices=False)
    return (u * values) @ v


def polynomials(values: torch.Tensor) -> torch.Tensor:
    for a, b, c in POLYNOMIALS:
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 12, 5), (2, 5, 12)])
def test_singular_vectors_are_kept_and_singular_values_become_about_one(shape: tuple[int, int, int]) -> None:
    matrices = with_values(drawn(*shape), torch.linspace(1.0, 0.05, min(shape[1:]), dtype=torch.float64))
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    inner = u.mT @ orthogonalize(matrices) @ v.mT  # diagonal, if the singular vectors are the same
    values = inner.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(inner, torch.diag_embed(values))
    assert values.min() > 0.7
    assert values.max() < 1.3


def test_each_round_applies_its_polynomial_to_the_singular_values() -> None:
    values = torch.tensor([0.9, 0.3, 0.01], dtype=torch.float64)
    values = values / values.norm() / 1.01
    torch.testing.assert_close(orthogonalize(torch.diag(values)[None])[0], torch.diag(polynomials(values)))


def test_values_above_a_hundredth_end_close_to_one() -> None:
    values = torch.linspace(0.01, 1.0, 10001, dtype=torch.float64)
    found = polynomials(values)
    assert found.min() > 0.72
    assert found.max() < 1.28
    smaller = polynomials(torch.linspace(0.0, 0.01, 101, dtype=torch.float64))
    assert torch.equal(smaller, smaller.sort().values)  # and are raised in their order
    assert smaller[-1] < 0.73


def test_scale_does_not_matter_and_zero_stays_zero() -> None:
    matrices = drawn(2, 4, 6)
    torch.testing.assert_close(orthogonalize(1e-6 * matrices), orthogonalize(matrices))
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 24, 96), (3, 96, 24)])
def test_rounds_follow_a_slow_loop(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """With singular values over six orders of magnitude, as gradients have."""
    values = torch.logspace(0, -6, min(shape[1:]), dtype=torch.float64)
    matrices = with_values(drawn(*shape), values).to(dtype)
    expected = matrices.double() / matrices.double().norm(dim=(-2, -1), keepdim=True) / 1.01
    for a, b, c in POLYNOMIALS:
        gram = expected @ expected.mT
        expected = a * expected + b * gram @ expected + c * gram @ gram @ expected
    tolerance = 2e-3 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(orthogonalize(matrices).double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(24, 96), (96, 24), (32, 32)])
@pytest.mark.parametrize("rank", [1, 3])
def test_a_matrix_of_low_rank_stays_bounded(rank: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Its largest value is close to the end of the interval; rounding makes eigenvalues of its Gram matrix negative."""
    matrices = (drawn(2, shape[0], rank) @ drawn(2, rank, shape[1])).to(dtype)
    values = torch.linalg.svdvals(orthogonalize(matrices).float())
    assert values.max() < 1.3
    assert (values[:, :rank] > 0.6).all()
    assert (values[:, rank:] < (0.1 if dtype == torch.float32 else 0.3)).all()  # bfloat16 adds ranks of its own
