from pathlib import Path

import torch

from asterism.methods.vq import Vq, VqConfig
from asterism.nn.tokenizers.saved import load_tokenizer
from asterism.types import Progress
from tests.methods.batches import TINY, random_batch

CONFIG = VqConfig(vocabulary=12, code_dim=4, decoder_dim=16, decoder_depth=1, decoder_heads=2)
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)


def _vq() -> Vq:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Vq(CONFIG, TINY)


def test_loss_is_that_of_the_slow_loop() -> None:
    method = _vq()
    batch = random_batch(method, 2)
    losses = method.loss(batch, PROGRESS)
    tokens = method.backbone(batch.views[0].pixels)
    latents, chosen = [], []
    for image in tokens.patches:
        for patch in image:
            latent = method.codes.squeeze(patch)
            latents.append(latent / latent.norm())
            gaps = [float((latents[-1].detach() - code).norm()) for code in method.codes.codebook.codes]
            chosen.append(gaps.index(min(gaps)))
    codes = method.codes.codebook.codes[chosen]
    commitment = (torch.stack(latents) - codes).square().mean()
    torch.testing.assert_close(losses.terms["commitment"], commitment)
    made = method.codes.reconstruction.predict(codes.view(2, 16, 4), tokens.grid)
    std, mean = torch.tensor([0.229, 0.224, 0.225]), torch.tensor([0.485, 0.456, 0.406])
    picture = batch.views[0].pixels * std[:, None, None] + mean[:, None, None]
    torch.testing.assert_close(losses.terms["reconstruction"], (made - picture).square().mean())
    torch.testing.assert_close(losses.total, losses.terms["reconstruction"] + 0.25 * commitment)


def test_the_gradient_of_the_decoder_passes_straight_through() -> None:
    method = _vq()
    losses = method.loss(random_batch(method, 2), PROGRESS)
    losses.terms["reconstruction"].backward()
    for parameter in (method.codes.squeeze.weight, method.backbone.network.blocks[0].attn.qkv.weight):
        assert parameter.grad is not None
        assert parameter.grad.any()


def test_the_tokenizer_of_a_run_loads_from_its_folder(tmp_path: Path) -> None:
    method = _vq()
    method.encoder().save(tmp_path, step=1)
    tokenizer = load_tokenizer(tmp_path)
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    codes = tokenizer.encode(images)
    assert (tokenizer.vocabulary, tokenizer.factor, tuple(codes.shape)) == (12, 4, (2, 4, 4))
    assert torch.equal(codes, method.tokenizer().encode(images))
    assert torch.equal(tokenizer.decode(codes), method.tokenizer().decode(codes))
