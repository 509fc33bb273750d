import numpy as np
import torch
from sklearn.decomposition import PCA

from asterism.ops.principal import principal_basis, project, rank_approximation

ROWS = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(0)) + 2


def test_each_matrix_by_its_own_components() -> None:
    for rank in (1, 3, 8):
        for ours, rows in zip(rank_approximation(ROWS, rank), ROWS, strict=True):
            pca = PCA(rank, svd_solver="full").fit(rows.numpy())
            expected = pca.inverse_transform(pca.transform(rows.numpy()))
            assert np.allclose(ours, expected, atol=1e-4)


def test_a_shared_basis_describes_other_rows() -> None:
    pca = PCA(3, svd_solver="full").fit(ROWS[0].numpy())
    mean, basis = principal_basis(ROWS[0], 3)
    expected = pca.inverse_transform(pca.transform(ROWS[1].numpy()))
    assert np.allclose(project(ROWS[1:2], mean, basis)[0], expected, atol=1e-4)
