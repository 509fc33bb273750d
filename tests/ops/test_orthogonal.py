import pytest
import torch

from asterism.ops.orthogonal import orthogonalize


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 12, 5), (2, 5, 12)])
def test_singular_vectors_are_kept_and_singular_values_become_about_one(shape: tuple[int, int, int]) -> None:
    matrices = drawn(*shape)
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    inner = u.mT @ orthogonalize(matrices, rounds=5) @ v.mT  # diagonal, if the singular vectors are the same
    values = inner.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(inner, torch.diag_embed(values))
    assert values.min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_each_round_applies_the_published_polynomial_to_the_singular_values(rounds: int) -> None:
    values = torch.tensor([0.9, 0.3, 0.01], dtype=torch.float64)
    values = values / values.norm()
    expected = values.clone()
    for _ in range(rounds):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    torch.testing.assert_close(orthogonalize(torch.diag(values)[None], rounds)[0], torch.diag(expected))


def test_scale_does_not_matter_and_zero_stays_zero() -> None:
    matrices = drawn(2, 4, 6)
    torch.testing.assert_close(orthogonalize(1e-6 * matrices), orthogonalize(matrices))
    assert torch.equal(orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_matrices_of_a_batch_do_not_affect_each_other() -> None:
    matrices = drawn(3, 4, 6)
    torch.testing.assert_close(orthogonalize(matrices)[1:2], orthogonalize(matrices[1:2]))


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 24, 96), (3, 96, 24), (2, 16, 25)])
def test_long_matrices_agree_with_iterations_on_the_matrix(
    shape: tuple[int, int, int], dtype: torch.dtype, rounds: int
) -> None:
    """Singular values over six orders of magnitude, as gradients have: the Gram matrix squares them."""
    matrices = drawn(*shape)
    u, values, v = torch.linalg.svd(matrices, full_matrices=False)
    matrices = ((u * torch.logspace(0, -6, values.shape[-1], dtype=torch.float64)) @ v).to(dtype)
    expected = matrices.double() / matrices.double().norm(dim=(-2, -1), keepdim=True)
    for _ in range(rounds):
        gram = expected @ expected.mT
        expected = 3.4445 * expected - 4.7750 * gram @ expected + 2.0315 * gram @ gram @ expected
    tolerance = 2e-3 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(orthogonalize(matrices, rounds).double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_a_matrix_of_low_rank_stays_bounded(rounds: int) -> None:
    """Its Gram matrix has eigenvalues that rounding makes negative."""
    matrices = (drawn(2, 24, 1) @ drawn(2, 1, 96)).float()
    values = torch.linalg.svdvals(orthogonalize(matrices, rounds))
    assert values.max() < 1.3
    assert (values[:, 0] > 0.6).all()
    assert (values[:, 1:] < 0.1).all()
