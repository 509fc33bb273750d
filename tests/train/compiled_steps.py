"""Compares compiled with eager steps. Run by itself: shape checks at run time, which tests use, cannot be compiled."""

import sys

import torch

from asterism.methods.base import Method
from asterism.nn.heads import ProjectionHead
from asterism.ops.compilable import compiled_functions
from asterism.ops.losses import cross_entropy
from asterism.train.building import build_method
from asterism.train.compiling import compile_parts
from asterism.train.cost import noise
from asterism.types import Progress
from tests.train.tiny import tiny_recipe

PROGRESS = Progress(step=3, steps=100, steps_per_epoch=10)


def main(names: list[str]) -> None:
    for name in names:
        torch._dynamo.reset()
        recipe = tiny_recipe(name)
        eager, compiled = build_method(recipe), build_method(recipe)
        parameters = list(compiled.state_dict())
        assert compile_parts(compiled, backend="aot_eager") > 0
        assert list(compiled.state_dict()) == parameters
        torch._dynamo.utils.counters.clear()
        with compiled_functions(backend="aot_eager"):
            loss, gradients = loss_and_gradients(compiled)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
        assert not torch._dynamo.utils.counters["graph_break"], torch._dynamo.utils.counters["graph_break"]
        expected, expected_gradients = loss_and_gradients(eager)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-5)
        print("equal:", name)


def changing_sizes() -> None:
    """Masked patches and temperatures change in every step; code is compiled for the first two, then for any."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with compiled_functions(backend="aot_eager"):
        for step in range(6):
            targets, logits = torch.rand(20 + step, 7), torch.rand(20 + step, 7)
            found = cross_entropy(targets, logits, 0.04 + 0.01 * step)
            expected = -(targets * (logits / (0.04 + 0.01 * step)).log_softmax(dim=-1)).sum(dim=-1)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    print("graphs:", torch._dynamo.utils.counters["stats"]["unique_graphs"])


def changing_rows() -> None:
    """A head gets as many rows as there are masked patches, more different numbers than code is kept for."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    method = build_method(tiny_recipe("ibot"))
    heads = [part for part in method.modules() if isinstance(part, ProjectionHead)]
    compile_parts(method, backend="aot_eager")
    for rows in range(2, 102):
        x = torch.rand(rows, heads[0].mlp[0].in_features)
        torch.testing.assert_close(heads[0].mlp(x), heads[0].mlp.forward(x), rtol=1e-5, atol=1e-5)
    print("head graphs:", torch._dynamo.utils.counters["stats"]["unique_graphs"])


def loss_and_gradients(method: Method) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    method.train()
    total = method.loss(noise(method.views, 4, torch.device("cpu")), PROGRESS).total
    torch.autograd.backward(total)
    return total.detach(), {n: p.grad for n, p in method.named_parameters() if p.grad is not None}


if __name__ == "__main__":
    main(sys.argv[1:])
    changing_sizes()
    changing_rows()
