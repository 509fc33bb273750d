from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from asterism.methods.mae import Mae, MaeConfig
from asterism.nn.backbone import BackboneConfig
from asterism.ops.masking import keep_from_noise, mask_from_keep, removed_from_keep
from tests.golden.vectors import Vectors, read

ABSOLUTE, LOSS, TABLE = 1e-4, 1e-5, 1e-6


@pytest.fixture(scope="module")
def forward(golden: Path) -> Vectors:
    return read(golden / "mae" / "forward_tiny.npz")


@pytest.fixture(scope="module")
def state(golden: Path) -> dict[str, Tensor]:
    return load_file(golden / "checkpoints" / "mae_tiny.safetensors")


def _method(forward: Vectors, state: dict[str, Tensor], target: str) -> Mae:
    params = forward.params
    method = Mae(
        MaeConfig(
            mask_ratio=params["mask_ratio"],
            target=target,
            decoder_dim=params["decoder_embed_dim"],
            decoder_depth=params["decoder_depth"],
            decoder_heads=params["decoder_num_heads"],
        ),
        BackboneConfig(
            name="vit_base_patch16_224",
            image_size=params["img_size"],
            patch_size=params["patch_size"],
            dim=params["embed_dim"],
            depth=params["depth"],
            heads=params["num_heads"],
            positions="sincos",
        ),
    )
    table = state["decoder_pos_embed"]
    decoder = {name.removeprefix("decoder_"): v for name, v in state.items() if name.startswith("decoder_")}
    decoder["mask_token"] = state["mask_token"]
    del decoder["pos_embed"]
    method.decoder.load_state_dict(decoder)
    torch.testing.assert_close(method.decoder.positions, table[0, 1:], rtol=0, atol=TABLE)
    encoder = {name: v for name, v in state.items() if not name.startswith(("decoder_", "mask_token"))}
    own = method.backbone.network.pos_embed.clone()
    method.backbone.network.load_state_dict(encoder)
    torch.testing.assert_close(own, state["pos_embed"], rtol=0, atol=TABLE)
    return method


@pytest.mark.parametrize(("target", "expected"), [("pixels", "out_loss"), ("normalised", "out_loss_norm_pix")])
def test_forward(forward: Vectors, state: dict[str, Tensor], target: str, expected: str) -> None:
    method = _method(forward, state, target)
    image = forward["in_image"]
    keep = keep_from_noise(forward["in_noise"], forward.params["mask_ratio"])
    assert keep.equal(forward["out_ids_keep"])
    assert mask_from_keep(keep, forward["in_noise"].shape[1]).float().equal(forward["out_mask"])
    tokens = method.backbone(image, keep=keep)
    assert tokens.cls is not None
    latent = torch.cat([tokens.cls[:, None], tokens.patches], dim=1)
    torch.testing.assert_close(latent, forward["out_latent"], rtol=0, atol=ABSOLUTE)
    predicted = method.decoder(tokens, keep)
    torch.testing.assert_close(predicted, forward["out_pred"], rtol=0, atol=ABSOLUTE)
    removed = removed_from_keep(keep, forward["in_noise"].shape[1])
    alone = method.decoder(tokens, keep, removed)
    expected_alone = forward["out_pred"].gather(1, removed[..., None].expand_as(alone))
    torch.testing.assert_close(alone, expected_alone, rtol=0, atol=ABSOLUTE)
    loss = method.reconstruction_loss(alone, image, removed)
    assert loss.item() == pytest.approx(forward[expected].item(), rel=LOSS)
