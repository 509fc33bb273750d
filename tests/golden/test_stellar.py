"""STELLAR's parts against the golden vectors: assignment, spread, localisation, losses and masks."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import asterism
from asterism.errors import UserError
from asterism.methods.stellar import Stellar
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.localization import Localization
from asterism.nn.reconstruction import CodeReconstruction, PixelReconstruction
from asterism.nn.tokenizers.vqgan import MaskGitVqgan
from asterism.nn.weights.load import load_encoder
from asterism.ops import assignment, concept_alignment, masking
from asterism.ops.concept_alignment import AlignmentConfig, Concepts, align_concepts
from asterism.ops.koleo import koleo
from asterism.ops.normalise import normalise
from asterism.ops.random import fold, fold_each, uniform
from asterism.types import Losses, Progress
from tests.golden.trajectories import stellar as published
from tests.golden.trajectories.steps import batch_of
from tests.golden.vectors import Vectors, read, relative_error


@pytest.mark.parametrize(("case", "tolerance"), [("", 1e-5), ("_extreme", 3e-5), ("_underflow", 1e-5)])
def test_sinkhorn_knopp(golden: Path, case: str, tolerance: float) -> None:
    v = read(golden / "stellar" / "sinkhorn_knopp.npz")
    targets = assignment.sinkhorn_knopp(v[f"in_logits{case}"], v.params["temperature"], v.params["iterations"])
    torch.testing.assert_close(targets, v[f"out_targets{case}"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", ["", "_hard"])
def test_match(golden: Path, case: str) -> None:
    v = read(golden / "stellar" / "match.npz")
    source, target, epsilon = v[f"in_source{case}"], v[f"in_target{case}"], v.params["epsilon"]
    cost = assignment.distances(source, target)
    plan = assignment.transport_plan(cost, epsilon, v.params["iterations"])
    torch.testing.assert_close(plan, v[f"out_plan{case}"], rtol=0, atol=5e-5)
    assert torch.equal(assignment.match(source, target, epsilon, v.params["iterations"]), v[f"out_sigma{case}"])
    assert torch.equal(assignment.hungarian(cost), v[f"out_hungarian{case}"])


def test_koleo(golden: Path) -> None:
    v = read(golden / "stellar" / "koleo.npz")
    tokens = v["in_tokens"].requires_grad_()
    loss = koleo(tokens)
    loss.backward()
    torch.testing.assert_close(loss.double(), v["out_loss"].double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(tokens.grad, v["out_grad"], rtol=0, atol=1e-6)


def test_koleo_of_duplicates(golden: Path) -> None:
    v = read(golden / "stellar" / "koleo.npz")
    tokens = v["in_tokens_duplicate"].requires_grad_()
    loss = koleo(tokens)
    loss.backward()
    torch.testing.assert_close(loss.double(), v["out_loss_duplicate"].double(), rtol=1e-5, atol=0)
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()
    assert tokens.grad.abs().max() < 2 * v.params["duplicate_grad_abs_max"]


def test_localization(golden: Path) -> None:
    v = read(golden / "stellar" / "localize.npz")
    localization = Localization(v["in_dense"].shape[-1], v.params["temperature"])
    names = {"dense.weight": "w1", "dense.bias": "b1", "sparse.weight": "w2", "sparse.bias": "b2"}
    localization.load_state_dict({name: v[f"in_{array}"] for name, array in names.items()})
    where = localization(v["in_dense"], v["in_sparse"])
    torch.testing.assert_close(where, v["out_l"], rtol=0, atol=1e-5)
    torch.testing.assert_close(where @ v["in_sparse"], v["out_ls"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("loss", ["cluster", "align"])
def test_losses(golden: Path, loss: str) -> None:
    v = read(golden / "stellar" / "losses.npz")
    p = v.params
    weights = {
        name: v[f"in_{name}"].requires_grad_() for name in ("mlp_w1", "mlp_b1", "mlp_w2", "mlp_b2", "prototypes")
    }
    tokens = v["in_global_tokens"].requires_grad_()
    views = v["in_view_tokens"].requires_grad_()

    def project(x: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(x, weights["mlp_w1"], weights["mlp_b1"]))
        return F.normalize(F.linear(hidden, weights["mlp_w2"], weights["mlp_b2"]), dim=-1, eps=p["normalize_eps"])

    anchors, partial = project(tokens), project(views)
    logits = anchors @ weights["prototypes"].T
    torch.testing.assert_close(logits, v["out_logits_global"], rtol=0, atol=1e-5)
    torch.testing.assert_close(partial @ weights["prototypes"].T, v["out_logits_view"], rtol=0, atol=1e-5)
    alignment = align_concepts(
        Concepts(tokens, anchors),
        Concepts(views, partial),
        weights["prototypes"],
        AlignmentConfig(
            target_temp=p["target_temperature"],
            prediction_temp=p["prediction_temperature"],
            sinkhorn_iterations=p["sinkhorn_iterations"],
            match_epsilon=p["epsilon"],
            match_iterations=p["match_iterations"],
        ),
    )
    torch.testing.assert_close(alignment.q_tilde, v["out_targets"], rtol=0, atol=1e-5)
    assert torch.equal(alignment.sigma, v["out_sigma"])
    value = getattr(alignment, loss)
    torch.testing.assert_close(value.double(), v[f"out_{loss}_loss"].double(), rtol=1e-5, atol=0)

    inputs = {"global": tokens, "view": views, **weights}
    gradients = torch.autograd.grad(value, list(inputs.values()), allow_unused=True)
    for (name, tensor), gradient in zip(inputs.items(), gradients, strict=True):
        gradient = torch.zeros_like(tensor) if gradient is None else gradient
        torch.testing.assert_close(gradient, v[f"out_{loss}_grad_{name}"], rtol=0, atol=2e-5, msg=name)


def test_kept_counts(golden: Path) -> None:
    v = read(golden / "stellar" / "masking.npz")
    for n, ratio, kept in zip(v["in_n_table"], v["in_ratio_table"], v["out_keep_table"], strict=True):
        assert masking.keep_count(int(n), float(ratio)) == int(kept)
    for ratio, kept in zip(v["in_ratios"], v["out_keep"], strict=True):
        assert masking.keep_count(v["in_noise"].shape[1], float(ratio)) == int(kept)


def test_kept_patches(golden: Path) -> None:
    v = read(golden / "stellar" / "masking.npz")
    for ratio in v["in_ratios"].tolist():
        keep = masking.keep_from_noise(v["in_noise"], ratio)
        assert torch.equal(keep, v[f"out_ids_keep_{round(100 * ratio)}"])
        mask = masking.mask_from_keep(keep, v["in_noise"].shape[1])
        assert torch.equal(mask, v[f"out_mask_{round(100 * ratio)}"] > 0)


def test_focus(golden: Path) -> None:
    v = read(golden / "stellar" / "masking.npz")
    grid, ratio = v.params["grid"], v.params["focal_noise_ratio"]
    focus = masking.Focus(v["in_center_yx"].long(), v["in_sigma"].float(), v["in_do_focal"] > 0)
    noise = masking.focus_noise(v["in_noise_focal"].float(), (grid, grid), focus)
    torch.testing.assert_close(noise, v["out_noise_biased"].float(), rtol=0, atol=1e-6)
    keep = masking.keep_from_noise(noise, ratio)
    assert torch.equal(keep, v[f"out_ids_keep_focal_{round(100 * ratio)}"])
    mask = masking.mask_from_keep(keep, noise.shape[1])
    assert torch.equal(mask, v[f"out_mask_focal_{round(100 * ratio)}"] > 0)


@pytest.mark.parametrize(("case", "probability"), [("none", 0.0), ("bias", 1.0), ("mixed", None)])
def test_mask_statistics(golden: Path, case: str, probability: float | None) -> None:
    v = read(golden / "stellar" / "masking.npz")
    p, draws = v.params, 4000
    side = p["grid"]
    probability = p["p_focal"] if probability is None else probability
    keys = fold_each(torch.arange(draws), fold(0, 3))
    config = masking.FocusConfig(probability=probability, sigma=tuple(p["sigma_range"]))
    focus = masking.draw_focus(fold_each(keys, 1), (side, side), config)
    assert abs(float(focus.active.float().mean()) - probability) <= p["fraction_biased_band_T4000"]
    noise = masking.focus_noise(uniform(fold_each(keys, 0), side * side), (side, side), focus)
    cells = torch.cartesian_prod(torch.arange(side), torch.arange(side)).float()
    for i, ratio in enumerate(p["ratios"]):
        keep = masking.keep_from_noise(noise, ratio)
        pairs = torch.cdist(cells[keep], cells[keep], compute_mode="donot_use_mm_for_euclid_dist")
        kept = keep.shape[1]
        distance = pairs.sum(dim=(1, 2)) / (kept * (kept - 1))
        band = p["band_T4000"][case][i]
        assert abs(float(distance.mean()) - float(v[f"out_mean_pairwise_{case}"][i])) <= band


def _load(golden: Path, name: str, params: dict[str, Any]) -> ConceptEncoder:
    return _load_file(golden / "checkpoints" / name, params)


def _load_file(path: Path, params: dict[str, Any]) -> ConceptEncoder:
    heads, decoder_heads = params["num_attention_heads"], params["decoder_num_attention_heads"]
    encoder = load_encoder(path, heads=heads, decoder_heads=decoder_heads)
    assert isinstance(encoder, ConceptEncoder)
    return encoder


@torch.no_grad()
@pytest.mark.parametrize("case", ["", "_resized"])
def test_encoder_of_an_official_checkpoint(golden: Path, case: str) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    encoder = _load(golden, "stellar_tiny.safetensors", v.params)
    features = encoder.encode(v[f"in_image{case}"])
    assert features.sparse is not None
    assert features.where is not None
    torch.testing.assert_close(features.cls, v[f"out_cls{case}"], rtol=0, atol=1e-4)
    torch.testing.assert_close(features.patches, v[f"out_dense{case}"], rtol=0, atol=1e-4)
    torch.testing.assert_close(features.sparse, v[f"out_sparse{case}"], rtol=0, atol=1e-4)
    torch.testing.assert_close(features.where.flatten(2).mT, v[f"out_l{case}"], rtol=0, atol=1e-4)
    if not case:
        mixed = features.where.flatten(2).mT @ features.sparse
        torch.testing.assert_close(mixed, v["out_ls"], rtol=0, atol=1e-4)
        spread = v.params["koleo_weight"] * koleo(features.sparse)
        torch.testing.assert_close(spread.double(), v["out_koleo_loss_weighted"].double(), rtol=1e-5, atol=0)


@torch.no_grad()
def test_pixels_of_an_official_checkpoint(golden: Path) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    encoder = _load(golden, "stellar_tiny.safetensors", v.params)
    features = encoder.encode(v["in_image"])
    assert isinstance(encoder.reconstruction, PixelReconstruction)
    pixels = encoder.reconstruction.predict(v["out_ls"], features.grid)
    torch.testing.assert_close(pixels, v["out_recon_pixels"], rtol=0, atol=1e-4)
    loss, _ = encoder.reconstruction.loss(v["out_ls"], features.grid, v["in_image"])
    torch.testing.assert_close(loss.double(), v["out_mse"].double(), rtol=1e-5, atol=0)
    made = encoder.reconstruct(features.sparse, features.where)
    torch.testing.assert_close(made, v["out_recon_pixels"].clamp(0, 1), rtol=0, atol=1e-4)


@torch.no_grad()
def test_codes_of_an_official_checkpoint(golden: Path) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    encoder = _load(golden, "stellar_tiny_vq.safetensors", v.params)
    side = encoder.image_size // encoder.backbone.patch_size
    assert isinstance(encoder.reconstruction, CodeReconstruction)
    logits = encoder.reconstruction.predict(v["out_ls"], (side, side))
    torch.testing.assert_close(logits, v["out_recon_logits"], rtol=0, atol=1e-4)
    loss = F.cross_entropy(logits.flatten(0, 1), v["in_codes"].flatten())
    torch.testing.assert_close(loss.double(), v["out_vq_ce"].double(), rtol=1e-5, atol=0)
    with pytest.raises(UserError, match="tokenizer"):
        encoder.reconstruction(v["out_ls"], (side, side))


@torch.no_grad()
@pytest.mark.parametrize("name", ["stellar_tiny.safetensors", "stellar_tiny_vq.safetensors"])
def test_concepts_survive_saving(golden: Path, tmp_path: Path, name: str) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    encoder = _load(golden, name, v.params)
    again = load_encoder(encoder.save(tmp_path / "encoder.safetensors"))
    assert isinstance(again, ConceptEncoder)
    ours, theirs = encoder.encode(v["in_image"]), again.encode(v["in_image"])
    assert torch.equal(ours.where, theirs.where)
    grid = ours.grid
    assert torch.equal(
        encoder.reconstruction.predict(v["out_ls"], grid), again.reconstruction.predict(v["out_ls"], grid)
    )
    plain = timm.create_model(**again.timm_arguments)
    plain.load_state_dict(load_file(tmp_path / "encoder.safetensors"))
    tokens = plain.eval().forward_features(encoder.normalise(v["in_image"]))
    registers = tokens[:, 1 : 1 + plain.num_reg_tokens]
    torch.testing.assert_close(registers, v["out_sparse"], rtol=0, atol=1e-4)
    torch.testing.assert_close(registers, ours.sparse, rtol=0, atol=1e-5)


def test_training_checkpoints_are_recognised_by_their_wrapper(golden: Path, tmp_path: Path) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    tensors = load_file(golden / "checkpoints" / "stellar_tiny.safetensors")
    torch.save({"state_dict": {f"model.{name}": t for name, t in tensors.items()}, "epoch": 3}, tmp_path / "x.pth")
    encoder = _load_file(tmp_path / "x.pth", v.params)
    torch.testing.assert_close(encoder.encode(v["in_image"]).sparse, v["out_sparse"], rtol=0, atol=1e-4)


def test_a_tokenizer_inside_an_official_checkpoint_decodes_its_codes(golden: Path, tmp_path: Path) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    tensors = load_file(golden / "checkpoints" / "stellar_tiny_vq.safetensors")
    vqgan = MaskGitVqgan(width=32, multipliers=(1, 1), blocks=1, channels=4, vocabulary=v.params["vq_vocabulary"])
    tensors |= {f"tokenizer.{name}": tensor for name, tensor in vqgan.state_dict().items()}
    save_file(tensors, tmp_path / "stellar.safetensors")
    encoder = _load_file(tmp_path / "stellar.safetensors", v.params)
    features = encoder.encode(v["in_image"])
    made = encoder.reconstruct(features.sparse, features.where)
    codes = v["out_recon_logits"].argmax(dim=-1).view(-1, *features.grid)
    with torch.no_grad():
        torch.testing.assert_close(made, vqgan.decode(codes), rtol=0, atol=1e-5)


def test_a_separate_tokenizer_decodes_the_codes_of_an_official_checkpoint(golden: Path, tmp_path: Path) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    vqgan = MaskGitVqgan(width=32, multipliers=(1, 1), blocks=1, channels=4, vocabulary=v.params["vq_vocabulary"])
    torch.save(vqgan.state_dict(), tmp_path / "vqgan.bin")
    heads = {"heads": v.params["num_attention_heads"], "decoder_heads": v.params["decoder_num_attention_heads"]}
    path = golden / "checkpoints" / "stellar_tiny_vq.safetensors"
    features = asterism.load(path, **heads).encode(v["in_image"])
    with pytest.raises(UserError, match="--tokenizer FILE"):
        asterism.load(path, **heads).reconstruct(features.sparse, features.where)
    made = asterism.load(path, tokenizer=tmp_path / "vqgan.bin", **heads).reconstruct(features.sparse, features.where)
    codes = v["out_recon_logits"].argmax(dim=-1).view(-1, *features.grid)
    with torch.no_grad():
        torch.testing.assert_close(made, vqgan.decode(codes), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="decodes to pixels"):
        asterism.load(golden / "checkpoints" / "stellar_tiny.safetensors", tokenizer=tmp_path / "vqgan.bin", **heads)


def test_the_error_names_an_incomplete_official_checkpoint(golden: Path, tmp_path: Path) -> None:
    v = read(golden / "stellar" / "forward_tiny.npz")
    tensors = load_file(golden / "checkpoints" / "stellar_tiny.safetensors")
    del tensors["decoder_proj.weight"]
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=r"lacks the tensor 'decoder_proj\.weight' of a STELLAR checkpoint"):
        load_encoder(tmp_path / "x.safetensors", heads=v.params["num_attention_heads"])


UNUSED = ("encoder.pooler.", "decoder.pooler.", "decoder.embeddings.")


def _official_step(golden: Path) -> tuple[Vectors, Stellar, Losses]:
    """The vectors of a training step, our method with the official weights, and its losses."""
    v = read(golden / "stellar" / "train_step_tiny.npz")
    method = published.method_of(v.params)
    weights = load_file(golden / v.params["checkpoint"])
    published.load(method, {name: tensor for name, tensor in weights.items() if not name.startswith(UNUSED)})
    views, local = v["in_global_views"], v["in_local_views"]
    pixels = [views[:, 0], *views.unbind(1), *local.unbind(1)]
    batch = batch_of([normalise(x, v.params["image_mean"], v.params["image_std"]) for x in pixels])
    noise = v["in_noise"].unflatten(0, views.shape[:2])
    masks = [masking.MaskDraw(of_view, None) for of_view in noise.unbind(1)]
    return v, method, method.losses(batch, masks, Progress(0, 1, 1))


def test_losses_of_an_official_training_step(golden: Path) -> None:
    v, _, losses = _official_step(golden)
    t = {name: value.detach().double() for name, value in losses.terms.items()}
    ours = {
        "mse": t["reconstruction"],
        "koleo_loss": v.params["koleo_weight"] * (t["koleo"] + t["koleo_masked"]),
        "clustering_loss": t["cluster"],
        "cls_clustering_loss": t["cls_cluster"],
        "mask_loss": t["align"],
        "cls_loss": t["cls_masked"] + t["cls_local"],
        "total_loss": losses.total.detach().double(),
    }
    for name, value in ours.items():
        torch.testing.assert_close(value, v[f"out_{name}"].double(), rtol=1e-5, atol=0, msg=name)


def test_matching_of_an_official_training_step(golden: Path) -> None:
    v = read(golden / "stellar" / "train_step_tiny.npz")
    found: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        match = concept_alignment.match_concepts
        patch.setattr(concept_alignment, "match_concepts", lambda *a: found.append(match(*a)) or found[-1])
        _official_step(golden)
    assert torch.equal(found[0], v["out_sigma"])


def test_gradients_of_an_official_training_step(golden: Path) -> None:
    v, method, losses = _official_step(golden)
    losses.total.backward()
    gradients = {name: p.grad for name, p in method.named_parameters() if p.grad is not None}
    expected = {
        n.removeprefix("out_grad_").replace("__", "."): a for n, a in v.arrays.items() if n.startswith("out_grad_")
    }
    norm = expected.pop("norm")
    assert expected
    for name, gradient in expected.items():
        assert relative_error(published.official(name, gradients.__getitem__), gradient) < 1e-4, name
    total = torch.stack([gradient.double().norm() for gradient in gradients.values()]).norm()
    torch.testing.assert_close(total, norm.double(), rtol=1e-4, atol=0)
