import math

import torch
from torch import Tensor

from asterism.nn.heads import LeveledPrototypeHead, PrototypeHead, image_tokens
from asterism.types import Tokens


def _slow_head(head: PrototypeHead, x: Tensor) -> Tensor:
    rows = []
    for row in x:
        for number in (0, 2, 4):
            layer = head.mlp[number]
            row = torch.stack([row @ layer.weight[i] + layer.bias[i] for i in range(len(layer.bias))])
            if number < 4:
                row = 0.5 * row * (1 + torch.erf(row / math.sqrt(2)))
        unit = row / row.square().sum().sqrt()
        logits = []
        for g, v in zip(head.last_layer.weight_g, head.last_layer.weight_v, strict=True):
            logits.append(unit @ (g * v / v.square().sum().sqrt()))
        rows.append(torch.stack(logits))
    return torch.stack(rows)


def test_the_head_follows_the_paper() -> None:
    torch.manual_seed(0)
    head = PrototypeHead(5, 7, hidden_dim=6, bottleneck_dim=4, norm_last_layer=False)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    fast, slow = (torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    cotangent = torch.randn(3, 7)
    ours, loop = head(fast), _slow_head(head, slow)
    torch.testing.assert_close(ours, loop)
    own = torch.autograd.grad((ours * cotangent).sum(), [fast, *head.parameters()])
    expected = torch.autograd.grad((loop * cotangent).sum(), [slow, *head.parameters()])
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


def test_gains_are_one_and_learn_only_when_not_normalised() -> None:
    for norm_last_layer in (True, False):
        layer = PrototypeHead(4, 6, 8, 4, norm_last_layer=norm_last_layer).last_layer
        assert layer.weight_g.equal(torch.ones(6, 1))
        assert layer.weight_g.requires_grad is not norm_last_layer
        assert layer.weight_v.requires_grad


def test_the_mean_patch_represents_an_image_without_class_token() -> None:
    patches, registers = torch.arange(12.0).reshape(2, 3, 2), torch.zeros(2, 0, 2)
    with_cls = Tokens(torch.ones(2, 2), patches, registers, (1, 3))
    without = Tokens(None, patches, registers, (1, 3))
    stacked = image_tokens([with_cls, without])
    assert stacked[0].equal(torch.ones(2, 2))
    assert stacked[1].equal(torch.tensor([[2.0, 3.0], [8.0, 9.0]]))


def test_levels_share_a_projection_but_not_prototypes() -> None:
    torch.manual_seed(0)
    head = LeveledPrototypeHead(6, {"image": 5, "objects": 7}, hidden_dim=8, bottleneck_dim=4, norm_last_layer=False)
    x = torch.randn(3, 6)
    projected = head(x)
    torch.testing.assert_close(projected.norm(dim=1), torch.ones(3))
    for level, count in {"image": 5, "objects": 7}.items():
        logits = head.logits(projected, level)
        assert logits.shape == (3, count)
        torch.testing.assert_close(logits, projected @ head.prototypes(level).T)
        torch.testing.assert_close(head.prototypes(level).norm(dim=1), torch.ones(count))
    trained = {name for name, p in head.named_parameters() if p.requires_grad}
    assert {"last_layers.image.weight_g", "last_layers.objects.weight_v", "mlp.0.weight"} <= trained
    fixed = LeveledPrototypeHead(6, {"image": 5}, norm_last_layer=True)
    assert not fixed.last_layers["image"].weight_g.requires_grad
