import math

import torch

from asterism.ops.koleo import koleo


def test_against_loops() -> None:
    tokens = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    terms = []
    for image in tokens:
        unit = [(t / t.norm()).tolist() for t in image]
        for i, a in enumerate(unit):
            terms.append(-math.log(min(math.dist(a, b) for j, b in enumerate(unit) if j != i) / 2))
    torch.testing.assert_close(koleo(tokens), torch.tensor(sum(terms) / len(terms)), rtol=1e-5, atol=0)


def test_neighbours_are_chosen_in_float32_under_autocast() -> None:
    tokens = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(2)) * 1e-2 + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = koleo(tokens)
    assert inside == koleo(tokens)
