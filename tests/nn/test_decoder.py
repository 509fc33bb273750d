import pytest
import torch

from asterism.nn.decoder import PixelDecoder
from asterism.types import Tokens


def _decoder() -> PixelDecoder:
    torch.manual_seed(0)
    return PixelDecoder(in_dim=6, grid=(2, 3), patch_dim=12, dim=8, depth=2, heads=2)


def _tokens(cls: bool = True) -> tuple[Tokens, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    patches = torch.randn(2, 3, 6, generator=generator)
    first = torch.randn(2, 6, generator=generator) if cls else None
    return Tokens(first, patches, torch.zeros(2, 0, 6), (2, 3)), torch.tensor([[4, 0, 2], [1, 5, 3]])


@pytest.mark.parametrize("cls", [True, False])
def test_tokens_are_placed_at_their_patches(cls: bool) -> None:
    decoder = _decoder()
    tokens, keep = _tokens(cls)
    for image in range(2):
        rows = [decoder.embed(tokens.cls[image])] if tokens.cls is not None else []
        for patch in range(6):
            where = (keep[image] == patch).nonzero()
            content = decoder.embed(tokens.patches[image, where[0, 0]]) if len(where) else decoder.mask_token[0, 0]
            rows.append(content + decoder.positions[patch])
        expected = decoder.pred(decoder.norm(decoder.blocks(torch.stack(rows)[None])))[0, -6:]
        torch.testing.assert_close(decoder(tokens, keep)[image], expected)


@pytest.mark.parametrize("cls", [True, False])
@pytest.mark.parametrize("whole_block", [True, False])
def test_removed_patches_alone(cls: bool, whole_block: bool) -> None:
    """The same pixels and gradients as a pass that also predicts visible patches."""
    decoder = _decoder().double()
    if whole_block:  # a block whose attention drops weights at random is not taken apart
        decoder.blocks[-1].attn.attn_drop.p = 0.1
        decoder.eval()
    single, keep = _tokens(cls)
    first = None if single.cls is None else single.cls.double()
    tokens = Tokens(first, single.patches.double(), single.registers.double(), single.grid)
    removed = torch.tensor([[1, 3, 5], [4, 2, 0]])
    expected = decoder(tokens, keep).gather(1, removed[..., None].expand(-1, -1, 12))
    found = decoder(tokens, keep, removed)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for part in (expected, found):
        decoder.zero_grad()
        (part * weights).sum().backward()
        gradients = [p.grad.clone() for p in decoder.parameters()]
        if part is expected:
            slow = gradients
    torch.testing.assert_close(gradients, slow, rtol=1e-10, atol=1e-12)
