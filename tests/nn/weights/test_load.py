import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from asterism.errors import UserError
from asterism.models import open_model
from asterism.nn import timm_models
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.nn.positions import resample
from asterism.nn.weights.load import load_encoder, load_weights_into

SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 1}


def network(name: str = "vit_base_patch16_224", **changes: Any) -> Any:
    """A plain timm network in which every parameter affects the output."""
    torch.manual_seed(1)
    made: Any = timm.create_model(name, **(SIZES | changes))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


def backbone(seed: int = 2, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return build_backbone(BackboneConfig(**({"dim": 64, "depth": 2, "patch_size": 8, "image_size": 32} | changes)))


def saved(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def pixels(rows: int = 4, columns: int = 4) -> Tensor:
    return torch.randn(2, 3, 8 * rows, 8 * columns, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"class_token": False, "global_pool": "", "num_classes": 0},
        {"reg_tokens": 3, "no_embed_class": True},
        {"init_values": 1e-2, "qk_norm": True, "qkv_bias": False},
        {"mlp_ratio": 2.5, "num_heads": 4},
    ],
)
@torch.no_grad()
def test_files_of_timm(tmp_path: Path, changes: dict[str, Any]) -> None:
    plain = network(**changes, dynamic_img_size=True)
    encoder = load_encoder(saved(tmp_path / "w.safetensors", plain.state_dict()), heads=changes.get("num_heads"))
    for shape in ((4, 4), (3, 5)):
        expected = plain.forward_features(pixels(*shape))[:, plain.num_prefix_tokens :]
        torch.testing.assert_close(encoder(pixels(*shape)).patches, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_bare_vit_is_read_as_dino_by_default(tmp_path: Path) -> None:
    plain = network(dynamic_img_size=True, num_classes=0)
    path = saved(tmp_path / "w.safetensors", plain.state_dict())
    expected = plain.forward_features(pixels(3, 5))[:, 0]
    torch.testing.assert_close(load_encoder(path, family="timm")(pixels(3, 5)).cls, expected, atol=1e-5, rtol=1e-5)
    assert load_encoder(path).backbone.architecture.resampling == "offset"
    assert not torch.allclose(load_encoder(path)(pixels(3, 5)).cls, expected, atol=1e-3)
    with pytest.raises(UserError, match="unknown family of weights 'tim'; did you mean 'timm'"):
        load_encoder(path, family="tim")


def test_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"embed_dim": 64, "depth": 1, "num_heads": 1}
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **more: create(name, **(more | small)))
    encoder = load_encoder("vit_tiny_patch16_224")
    assert encoder.mean == (0.5, 0.5, 0.5)  # as timm states for these weights
    assert encoder.image_size == 224

    pooled = load_encoder("vit_base_patch16_siglip_224")
    assert pooled.backbone.pooling == "attention"  # as these weights were trained
    assert load_encoder("vit_base_patch16_siglip_224", pooling="mean", mean=0.1).mean == (0.1, 0.1, 0.1)
    rotary = load_encoder("vit_small_patch16_dinov3")
    assert (rotary.backbone.pooling, rotary.image_size) == ("class", 256)

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no connection\nmore text")

    monkeypatch.setattr(timm_models.timm, "create_model", offline)
    with pytest.raises(
        UserError, match="published weights of 'vit_tiny_patch16_224' could not be downloaded: no connection;"
    ):
        load_encoder("vit_tiny_patch16_224")
    with pytest.raises(UserError, match="'resnet18' is neither"):
        load_encoder("resnet18")


@torch.no_grad()
def test_starting_from_weights_of_the_same_shape(tmp_path: Path) -> None:
    source, target = backbone(), backbone(seed=4)
    path = Encoder(source).save(tmp_path / "encoder.safetensors")
    report = load_weights_into(target, path)
    assert torch.equal(target(pixels()).patches, source(pixels()).patches)
    assert (report.fresh, report.unused, report.resampled) == ((), (), None)
    assert len(report.loaded) == len(source.network.state_dict())


@torch.no_grad()
def test_positions_are_resampled_to_the_grid_of_the_backbone(tmp_path: Path) -> None:
    plain = network(num_classes=0)
    path = saved(tmp_path / "w.safetensors", plain.state_dict())
    target = backbone(image_size=48)
    report = load_weights_into(target, path, family="timm")
    assert report.resampled == "4×4 → 6×6"
    table = target.network.pos_embed
    assert torch.equal(table[:, :1], plain.pos_embed[:, :1])
    assert torch.equal(table[:, 1:], resample(plain.pos_embed[:, 1:], (4, 4), (6, 6), "antialiased"))
    load_weights_into(target, path, family="dino")
    assert torch.equal(table[:, 1:], resample(plain.pos_embed[:, 1:], (4, 4), (6, 6), "offset"))
    assert "positions resampled 4×4 → 6×6" in str(report)


@torch.no_grad()
def test_registers_and_tokens_may_be_new_or_left_over(tmp_path: Path) -> None:
    plain = network(num_classes=0)
    path = saved(tmp_path / "w.safetensors", plain.state_dict())
    target = backbone(registers=3, mask_token=True)
    registers = target.network.reg_token.clone()
    report = load_weights_into(target, path)
    assert set(report.fresh) == {"reg_token", "mask_token"}
    assert "not in the checkpoint, so fresh: reg_token, mask_token" in str(report)
    assert torch.equal(target.network.reg_token, registers)
    # With registers, tokens have no rows in the position table: the class token's row is added to the token.
    assert torch.equal(target.network.cls_token, plain.cls_token + plain.pos_embed[:, :1])
    assert torch.equal(target.network.pos_embed, plain.pos_embed[:, 1:])

    without = backbone(class_token=False)
    assert load_weights_into(without, path).unused == ("cls_token",)
    assert torch.equal(without.network.pos_embed, plain.pos_embed[:, 1:])


@torch.no_grad()
@pytest.mark.parametrize("image_size", [32, 40])
def test_the_position_of_the_class_token_is_kept_if_the_network_has_one(tmp_path: Path, image_size: int) -> None:
    theirs = network()
    path = saved(tmp_path / "mae.safetensors", theirs.state_dict())
    own = backbone(registers=8, class_position=True, image_size=image_size)
    load_weights_into(own, path)
    table = own.network.pos_embed[0]
    assert torch.equal(table[0], theirs.pos_embed[0, 0])
    assert not table[1:9].any()
    assert torch.equal(own.network.cls_token, theirs.cls_token)
    # 1 + 8 + 16 rows are also a square: the file says that they are not 5×5 patches
    again = backbone(registers=8, class_position=True, image_size=40)
    load_weights_into(again, Encoder(own).save(tmp_path / "encoder.safetensors"))
    rows = resample(own.network.pos_embed[:, 9:], own.network.patch_embed.grid_size, (5, 5), "antialiased")
    torch.testing.assert_close(again.network.pos_embed[:, 9:], rows)


def test_mask_tokens_of_other_families_are_loaded(tmp_path: Path) -> None:
    tensors = network(num_classes=0).state_dict() | {"masked_embed": torch.arange(64.0)[None]}  # as in iBOT's student
    path = saved(tmp_path / "w.safetensors", tensors)
    target = backbone(mask_token=True)
    load_weights_into(target, path)
    assert torch.equal(target.mask_token, torch.arange(64.0)[None])
    assert load_weights_into(backbone(), path).unused == ("mask_token",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dim": 128},
            r"shape \[.*64.*\] in .*w\.safetensors and \[.*128.*\] in the backbone; build .* dim 64, patch_size 8",
        ),
        ({"patch_size": 16}, r"patch_embed\.proj\.weight has the shape \[64, 3, 8, 8\] in .* and \[64, 3, 16, 16\]"),
        ({"depth": 3}, r"lacks the tensor 'blocks\.2\..* of the backbone; .*depth 2"),
        ({"depth": 1}, r"has a tensor 'blocks\.1\..* that the backbone does not have"),
        ({"name": "vit_base_patch14_dinov2"}, "lacks the tensor .*gamma"),
    ],
)
def test_weights_of_a_different_shape_are_refused_and_change_nothing(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path / "w.safetensors", network(num_classes=0).state_dict())
    target = backbone(**changes)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    with pytest.raises(UserError, match=message):
        load_weights_into(target, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


def quantised(tensor: Tensor) -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch is about to remove it; files with it remain
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t * torch.nan, "has values that are not finite .* take an earlier checkpoint"),
        (lambda t: t.clone().flatten().index_fill(0, torch.tensor([3]), torch.inf).view_as(t), "are not finite"),
        (lambda t: t[:0], "is empty, as the shards of a distributed run"),
        (lambda t: t.to_sparse(), r"is sparse \(sparse_coo\); .*to_dense"),
        (quantised, "is quantised; .*dequantize"),
        (lambda t: t.to("meta"), "has no values, only a shape"),
        (lambda t: t.to(torch.int8), "is int8; save the weights as floating-point"),
        (lambda t: t.to(torch.complex64), "is complex64"),
    ],
    ids=["nan", "infinite", "empty", "sparse", "quantised", "meta", "integer", "complex"],
)
def test_tensors_that_no_network_can_use_are_named(tmp_path: Path, change: Any, message: str) -> None:
    path, name = tmp_path / "w.pth", "blocks.1.attn.proj.weight"
    tensors = network(num_classes=0).state_dict()
    torch.save({**tensors, name: change(tensors[name])}, path)
    target = backbone()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    for load in (load_encoder, lambda path: load_weights_into(target, path)):
        with pytest.raises(UserError, match=rf"blocks\.1\.attn\.proj\.weight of .*w\.pth .*{message}"):
            load(path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


def test_an_encoder_in_memory_that_is_not_finite_is_refused() -> None:
    encoder = Encoder(backbone())
    with torch.no_grad():
        next(encoder.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match=r"backbone\..* of this encoder has values that are not finite"):
        open_model(encoder)
