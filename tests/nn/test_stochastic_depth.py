import torch
from torch import nn

from asterism.nn.stochastic_depth import branch_factors, install_drop_paths, run_block

HOST = torch.device("cpu")
KEYS = torch.arange(4000) * 7919 + 13


class Residual(nn.Module):
    """A module with the structure of a timm block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.drop_path1: nn.Module = nn.Identity()
        self.drop_path2: nn.Module = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path1(self.first(x))
        return x + self.drop_path2(self.second(x))


def test_rates_grow_linearly_and_factors_keep_the_mean() -> None:
    factors = branch_factors(KEYS, depth=5, last_rate=0.4, device=HOST)
    for index, factor in enumerate(factors):
        assert factor is not None
        rate = 0.4 * index / 4
        kept = 1 / (1 - rate)
        assert torch.isclose(factor, torch.tensor(kept)).logical_or(factor == 0).all()
        assert abs((factor == 0).float().mean() - rate) < 0.02
        assert abs(factor.mean() - 1) < 0.03


def test_branches_blocks_and_keys_are_drawn_independently() -> None:
    *_, before, last = branch_factors(KEYS, depth=12, last_rate=0.5, device=HOST)
    assert before is not None
    assert last is not None
    dropped = torch.stack([before[0] == 0, before[1] == 0, last[0] == 0, last[1] == 0]).float()
    correlation = torch.corrcoef(dropped) - torch.eye(4)
    assert correlation.abs().max() < 0.06  # 1/√4000 = .016
    halves = torch.stack([dropped[:, :2000].flatten(), dropped[:, 2000:].flatten()])
    assert torch.corrcoef(halves)[0, 1].abs() < 0.06


def test_factors_scale_the_branches_of_their_samples_and_are_cleared_afterwards() -> None:
    block = Residual()
    install_drop_paths([block])
    x = torch.randn(3, 2, 3)
    factors = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 4.0]])
    result = run_block(block, x, factors, checkpointing=False)
    torch.testing.assert_close(result[0], x[0])
    torch.testing.assert_close(result[1], x[1] + 2 * block.first(x[1]))
    torch.testing.assert_close(result[2], x[2] + 4 * block.second(x[2]))
    torch.testing.assert_close(block(x[0]), run_block(block, x, None, checkpointing=False)[0])


def test_recomputation_uses_the_factors_of_its_own_forward_pass() -> None:
    block = Residual()
    install_drop_paths([block])
    x = torch.randn(3, 2, 3)
    first, second = torch.tensor([[0.0, 2.0, 1.0]] * 2), torch.tensor([[2.0, 0.0, 1.0]] * 2)
    gradients = []
    for checkpointing in (False, True):
        block.zero_grad()
        outputs = [run_block(block, x, factors, checkpointing) for factors in (first, second)]
        sum(output.square().sum() for output in outputs).backward()  # type: ignore[union-attr]
        gradients.append([parameter.grad.clone() for parameter in block.parameters() if parameter.grad is not None])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)
    assert block.drop_path1.factor is None
