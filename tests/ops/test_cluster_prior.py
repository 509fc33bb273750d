import pytest
import torch

from asterism.ops.cluster_prior import PowerLaw, check_prior, prior_shares


def test_priors_are_shares() -> None:
    assert prior_shares((0.5, 0.3, 0.2), 3).tolist() == [0.5, 0.3, 0.2]
    law = prior_shares(PowerLaw(exponent=1.0), 4)
    torch.testing.assert_close(law, torch.tensor([12.0, 6.0, 4.0, 3.0], dtype=torch.float64) / 25)
    torch.testing.assert_close(prior_shares(None, 12), torch.full((12,), 1 / 12, dtype=torch.float64))


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ((0.5, 0.2, 0.2), "sum to 0.9; they must sum to 1: divide each by 0.9"),
        ((0.5, 0.5), "prior has 2 shares for out_dim = 3"),
        ((1.0, 0.0, 0.0), "every cluster needs a share above 0"),
    ],
)
def test_shares_that_are_not_a_distribution_are_refused(prior: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_prior(prior, 3)
