import math

import pytest
import torch
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.nn.concepts import rebuild_reconstruction
from asterism.nn.reconstruction import CodeReconstruction, ConceptDecoder, FourierPositions, PixelReconstruction
from asterism.nn.tokenizers.vqgan import MaskGitVqgan

GRID = (2, 3)


def _decoder() -> ConceptDecoder:
    torch.manual_seed(0)
    return ConceptDecoder(in_dim=6, dim=8, depth=1, heads=2)


def _mixed() -> torch.Tensor:
    return torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1))


def test_positions_against_loops() -> None:
    positions = FourierPositions(8)
    table = positions(GRID)
    for row in range(2):
        for column in range(3):
            x, y = (column + 0.5) / 3 * 2 - 1, (row + 0.5) / 2 * 2 - 1
            for k in range(4):
                angle = 2 * math.pi * (x * float(positions.matrix[0, k]) + y * float(positions.matrix[1, k]))
                code = table[row * 3 + column, 2 * k : 2 * k + 2].tolist()
                assert code == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-5)


def test_pixels_are_placed_in_their_patches() -> None:
    module = PixelReconstruction(_decoder(), patch_size=2)
    pixels, hidden = module.predict(_mixed(), GRID), module.decoder(_mixed(), GRID)
    assert pixels.shape == (2, 3, 4, 6)
    patch = torch.einsum("d,dcpq->cpq", hidden[1, 4], module.head.weight) + module.head.bias[:, None, None]
    torch.testing.assert_close(pixels[1, :, 2:4, 2:4], patch)


def test_pixel_loss_and_psnr() -> None:
    module = PixelReconstruction(_decoder(), patch_size=2)
    images = torch.rand(2, 3, 4, 6, generator=torch.Generator().manual_seed(2))
    loss, psnr = module.loss(_mixed(), GRID, images)
    expected = (module.predict(_mixed(), GRID) - images).square().mean()
    torch.testing.assert_close(loss, expected)
    assert float(psnr.detach()) == pytest.approx(-10 * math.log10(float(expected.detach())), rel=1e-5)
    assert module(_mixed(), GRID).min() >= 0


def _codes(image_size: int | None = None) -> CodeReconstruction:
    tokenizer = MaskGitVqgan(width=32, multipliers=(1, 1), blocks=1, channels=4, vocabulary=5)
    return CodeReconstruction(_decoder(), 5, tokenizer, image_size)


def test_code_loss_and_accuracy() -> None:
    module = _codes()
    images = torch.rand(2, 3, 4, 6, generator=torch.Generator().manual_seed(2))
    codes = module.tokenizer.encode(images).flatten(1)
    logits = module.predict(_mixed(), GRID)
    loss, accuracy = module.loss(_mixed(), GRID, images)
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), codes.flatten()))
    assert float(accuracy.detach()) == pytest.approx(float((logits.argmax(-1) == codes).float().mean()))
    assert module(_mixed(), GRID).shape == (2, 3, 4, 6)


def test_the_tokenizer_gets_images_of_its_size_and_stays_frozen() -> None:
    module = _codes(image_size=6).train()
    images = torch.rand(8, 3, 9, 9, generator=torch.Generator().manual_seed(2)).round()
    plain = F.interpolate(images, size=(6, 6), mode="bicubic")
    assert plain.min() < 0, "the images must reveal a clamp"
    assert module.codes(images, (3, 3)).equal(module.tokenizer.encode(plain).flatten(1))
    with pytest.raises(UserError, match="4×4 patches, but the tokenizer makes 3×3 codes"):
        module.codes(torch.rand(1, 3, 9, 9), (4, 4))
    assert not module.tokenizer.training
    assert not any(p.requires_grad for p in module.tokenizer.parameters())


@pytest.mark.parametrize("module", [PixelReconstruction(_decoder(), 2), _codes(6), CodeReconstruction(_decoder(), 7)])
def test_descriptions_rebuild_the_module(module: PixelReconstruction | CodeReconstruction) -> None:
    again = rebuild_reconstruction(module.describe())
    assert again is not None
    again.load_state_dict(module.state_dict(), assign=True)
    assert again.describe() == module.describe()
    assert again.predict(_mixed(), GRID).equal(module.predict(_mixed(), GRID))
