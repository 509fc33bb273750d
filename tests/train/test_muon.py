import copy
import math

import pytest
import torch
from timm.models.vision_transformer import Block
from torch import nn

from asterism.errors import UserError
from asterism.ops.orthogonal import orthogonalize
from asterism.train import optim
from asterism.train.building import build_method
from asterism.train.muon import hidden_matrices
from asterism.train.optim import OptimConfig, build_optimizer, set_schedules
from asterism.train.recipe import load_recipe
from asterism.types import Progress

MUON = OptimConfig(name="muon", lr=0.1, lr_scaling="none", warmup_epochs=0, weight_decay=0.5, weight_decay_end=0.5)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(5, 8)
        self.blocks = nn.Sequential(Block(8, 2, qkv_bias=True))
        self.frozen = nn.ModuleDict({"mlp": nn.Linear(8, 8)}).requires_grad_(False)


def with_gradients(network: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)


def steps(network: nn.Module, optimizer: torch.optim.Optimizer, config: OptimConfig, numbers: list[int]) -> None:
    config = config.model_copy(update={"schedule": "constant"})
    for number in numbers:
        with_gradients(network, seed=number)
        set_schedules(optimizer, config, Progress(number, 100, 10), 64)
        optimizer.step()


def test_updates_follow_a_slow_loop() -> None:
    network, expected = Network(), Network()
    steps(network, build_optimizer(network, MUON), MUON, [0, 1, 2, 3, 4])
    momenta = {name: torch.zeros_like(weight) for name, weight in expected.named_parameters()}
    for step in range(5):
        with_gradients(expected, seed=step)
        for matrix in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            name = f"blocks.0.{matrix}.weight"
            weight = expected.get_parameter(name)
            momenta[name] = 0.95 * momenta[name] + 0.05 * weight.grad
            ahead = 0.05 * weight.grad + 0.95 * momenta[name]
            for rows in ahead.chunk(3) if "qkv" in name else [ahead]:
                rows.copy_(0.2 * math.sqrt(max(rows.shape)) * orthogonalize(rows[None].clone())[0])
            weight.data = weight.data - 0.1 * 0.5 * weight.data - 0.1 * ahead
    for name, weight in network.named_parameters():
        if name.startswith("blocks.") and weight.ndim == 2:
            torch.testing.assert_close(weight, dict(expected.named_parameters())[name], msg=name)


def test_the_rest_is_updated_as_by_adamw() -> None:
    network, expected = Network(), Network()
    steps(network, build_optimizer(network, MUON), MUON, [1, 2])
    adamw = MUON.model_copy(update={"name": "adamw"})
    steps(expected, build_optimizer(expected, adamw), adamw, [1, 2])
    hidden = {id(weight) for weight, _ in hidden_matrices(network)}
    rest = [name for name, weight in network.named_parameters() if id(weight) not in hidden]
    assert {"embed.weight", "blocks.0.norm1.weight", "blocks.0.attn.qkv.bias", "frozen.mlp.weight"} <= set(rest)
    for name in rest:
        assert torch.equal(network.get_parameter(name), expected.get_parameter(name)), name


@pytest.mark.parametrize("method", ["dino", "ibot", "mae", "sop", "flsl", "cribo", "stellar"])
def test_every_method_has_hidden_matrices_and_keeps_prototypes_out(method: str) -> None:
    recipe = load_recipe(f"{method}-cifar10", [])
    learner = build_method(recipe)
    names = {id(weight): name for name, weight in learner.named_parameters()}
    hidden = [names[id(weight)] for weight, _ in hidden_matrices(learner)]
    assert sum(name.startswith("backbone.network.blocks.") for name in hidden) == 4 * recipe.backbone.depth
    assert not [name for name in hidden if "teacher" in name or "last_layer" in name or "prototypes" in name]


def test_a_loaded_state_continues_as_the_original() -> None:
    original = Network()
    optimizer = build_optimizer(original, MUON)
    steps(original, optimizer, MUON, [1, 2])
    loaded = Network()
    loaded.load_state_dict(original.state_dict())
    other = build_optimizer(loaded, MUON)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for network, own in ((original, optimizer), (loaded, other)):
        steps(network, own, MUON, [3])
    for expected, found in zip(original.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_turns_of_version_0_1_are_ignored_with_a_warning() -> None:
    assert OptimConfig.parse({"name": "muon", "muon_every": 1}) == OptimConfig(name="muon")
    with pytest.warns(UserWarning, match=r"optim.muon_every is ignored: Muon updates every matrix in every step"):
        assert OptimConfig.parse({"name": "muon", "muon_every": 3}) == OptimConfig(name="muon")


def test_a_shared_matrix_is_updated_once() -> None:
    network = Network()
    network.blocks.append(Block(8, 2, qkv_bias=True))
    network.blocks[1].mlp.fc1.weight = network.blocks[0].mlp.fc1.weight
    weights = [id(weight) for weight, _ in hidden_matrices(network)]
    assert len(weights) == len(set(weights)) == 7


def test_frozen_weights_stay() -> None:
    network = Network()
    optimizer = build_optimizer(network, MUON)
    set_schedules(optimizer, MUON, Progress(0, 100, 10), 64)
    before = network.get_parameter("blocks.0.mlp.fc1.weight").detach().clone()
    with_gradients(network, 1)
    network.get_parameter("blocks.0.mlp.fc1.weight").grad = None
    optimizer.step()
    assert torch.equal(before, network.get_parameter("blocks.0.mlp.fc1.weight"))


def test_a_network_without_hidden_matrices_is_refused() -> None:
    with pytest.raises(UserError, match=r"no trained matrices in transformer blocks or MLPs; set optim.name=adamw"):
        build_optimizer(nn.Linear(3, 4), MUON)


def test_divided_matrices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "is_sharded", lambda module: True)
    with pytest.raises(UserError, match=r"optim.name = muon needs whole matrices.*trainer.strategy=ddp"):
        build_optimizer(Network(), MUON)
