"""STELLAR's parts against the golden vectors: assignment, spread, localisation, losses and masks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.nn.localization import Localization
from asterism.ops import assignment, masking
from asterism.ops.koleo import koleo
from asterism.ops.prototype_alignment import prototype_cross_entropy
from asterism.ops.random import fold, fold_each, uniform
from tests.golden.vectors import read


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
    targets = assignment.sinkhorn_knopp(logits.flatten(0, 1), p["target_temperature"], p["sinkhorn_iterations"])
    torch.testing.assert_close(targets.view_as(v["out_targets"]), v["out_targets"], rtol=0, atol=1e-5)

    b, r, _ = tokens.shape
    if loss == "cluster":
        embeddings, which = anchors.flatten(0, 1), torch.arange(b * r)
    else:
        sigma = assignment.match(views, tokens[:, None], p["epsilon"], p["match_iterations"])
        assert torch.equal(sigma, v["out_sigma"])
        embeddings, which = partial.flatten(0, 2), (sigma + r * torch.arange(b)[:, None, None]).flatten()
    value = prototype_cross_entropy(embeddings, weights["prototypes"], targets, which, p["prediction_temperature"])
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
    focus = masking.draw_focus(fold_each(keys, 1), (side, side), probability, tuple(p["sigma_range"]))
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
