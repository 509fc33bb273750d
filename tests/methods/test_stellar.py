import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import asterism
from asterism.errors import UserError
from asterism.methods.mae import Mae, MaeConfig
from asterism.methods.stellar import Stellar, StellarConfig, WarmupConfig, Weights
from asterism.methods.vq import Vq, VqConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.reconstruction import ReconstructionConfig
from asterism.nn.vocabulary import VocabularyConfig
from asterism.nn.weights.load import load_encoder, load_weights_into
from asterism.ops import assignment
from asterism.ops.koleo import koleo
from asterism.ops.masking import FocusConfig
from asterism.types import Batch, ColorJitter, Losses, Progress
from tests.methods.batches import TINY, random_batch

VOCABULARY = VocabularyConfig(prototypes=24, hidden_dim=16, bottleneck_dim=8)
DECODER = ReconstructionConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)
CONFIG = StellarConfig(
    tokens=4,
    reconstruction=DECODER,
    masked_views=2,
    local_views=2,
    local_size=8,
    vocabulary=VOCABULARY,
    class_vocabulary=VOCABULARY,
)
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)


def _stellar(**changes: Any) -> Stellar:
    """A method in the middle of training: its teacher, if any, differs from its student."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Stellar(CONFIG.model_copy(update=changes), TINY)
        with torch.no_grad():
            for name, parameter in method.named_parameters():
                if not name.startswith("teacher"):
                    parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def _visible(method: Stellar, keys: Tensor, ratio: float = 0.8) -> list[Tensor]:
    return [mask.keep(method.grid, ratio) for mask in method.draw_masks(keys)]


def _slow_losses(method: Stellar, batch: Batch, ratio: float, warm: bool) -> dict[str, Tensor]:
    """Every term, view by view and token by token, from the equations."""
    config, images, r = method.config, len(batch.keys), method.config.tokens
    keep = _visible(method, batch.keys, ratio)
    pixels = [view.pixels for view in batch.views]
    clean = method.backbone(pixels[0])
    masked = [method.backbone(p, keep=k) for p, k in zip(pixels[1:3], keep, strict=True)]
    local = [method.backbone(p) for p in pixels[3:]]
    if warm:
        seen, heads = method.teacher_backbone.network(pixels[2]), method.teacher_vocabulary.network
        cls_heads = method.teacher_class_vocabulary.network
    else:
        seen, heads, cls_heads = clean, method.vocabulary, method.class_vocabulary

    def balanced(head: Any, tokens: Tensor) -> Tensor:
        logits = (head(tokens) @ head.prototypes.T).detach()
        return assignment.sinkhorn_knopp(logits.flatten(0, -2), 0.06, 3).unflatten(0, tokens.shape[:-1])

    def prediction(head: Any, token: Tensor) -> Tensor:
        return torch.log_softmax(head(token) @ head.prototypes.T / 0.12, dim=-1)

    targets, cls_targets = balanced(heads, seen.registers), balanced(cls_heads, seen.cls)
    terms: dict[str, list[Tensor]] = {
        name: [] for name in ("cluster", "align", "cls_cluster", "cls_masked", "cls_local")
    }
    for i in range(images):
        anchors = seen.registers[i].detach()
        own = assignment.match(clean.registers[i], anchors, 0.1, 5) if warm else range(r)
        for j, k in enumerate(own):
            terms["cluster"].append(-(targets[i, k] * prediction(method.vocabulary, clean.registers[i, j])).sum())
        for view in masked:
            for j, k in enumerate(assignment.match(view.registers[i], anchors, 0.1, 5)):
                terms["align"].append(-(targets[i, k] * prediction(method.vocabulary, view.registers[i, j])).sum())
        for name, views in (("cls_cluster", [clean]), ("cls_masked", masked), ("cls_local", local)):
            for view in views:
                terms[name].append(-(cls_targets[i] * prediction(method.class_vocabulary, view.cls[i])).sum())
    result = {name: torch.stack(values).mean() for name, values in terms.items()}
    dense = F.normalize(method.localization.dense(clean.patches), dim=-1)
    sparse = F.normalize(method.localization.sparse(clean.registers), dim=-1)
    where = torch.softmax(dense @ sparse.mT / config.localization.temperature, dim=-1)
    std, mean = torch.tensor([0.229, 0.224, 0.225]), torch.tensor([0.485, 0.456, 0.406])
    picture = pixels[0] * std[:, None, None] + mean[:, None, None]
    made = method.reconstruction.predict(where @ clean.registers, clean.grid)
    result["reconstruction"] = (made - picture).square().mean()
    result["koleo"] = koleo(clean.registers)
    result["koleo_masked"] = torch.stack([koleo(view.registers) for view in masked]).mean()
    return result


@pytest.mark.parametrize("warm", [False, True])
def test_terms_and_gradients_are_those_of_the_slow_loop(warm: bool) -> None:
    method = _stellar(warmup=WarmupConfig(share=0.5) if warm else None)
    batch = random_batch(method, 3)
    ours = method.loss(batch, PROGRESS)
    expected = _slow_losses(method, batch, ratio=0.6 if warm else 0.8, warm=warm)
    assert ours.terms.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(ours.terms[name], value, rtol=1e-4, atol=1e-6, msg=name)
    trained = [p for p in method.parameters() if p.requires_grad]
    total = Losses(expected, method.term_weights).total
    for own, slow in zip(torch.autograd.grad(ours.total, trained), torch.autograd.grad(total, trained), strict=True):
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=1e-5)


def test_the_published_weights() -> None:
    weights = _stellar().term_weights
    assert weights == {
        "cluster": 1, "align": 1, "cls_cluster": 1, "cls_masked": 1, "cls_local": 1,
        "koleo": 0.1, "koleo_masked": 0.1, "reconstruction": 10,
    }  # fmt: skip


def test_alignment_trains_only_the_masked_view() -> None:
    method = _stellar()
    batch = random_batch(method, 3)
    clean, masked, _ = method.encode(batch, method.draw_masks(batch.keys), 0.8)
    terms, _ = method.cluster_and_align(clean, masked, None)
    gradients = torch.autograd.grad(terms["align"], [clean.registers, masked[0].registers], allow_unused=True)
    assert gradients[0] is None or not gradients[0].any()
    assert gradients[1] is not None
    assert gradients[1].any()


def test_the_published_views() -> None:
    method = Stellar(StellarConfig(), BackboneConfig(name="vit_base_patch16_224", depth=1))
    clean, *masked = method.views[:9]
    local = method.views[9:]
    assert method.config.localization.temperature == 0.06
    assert (len(masked), len(local)) == (8, 8)
    assert {view.size for view in (clean, *masked)} == {224}
    assert {view.scale for view in (clean, *masked)} == {(0.36, 1.0)}
    assert {(view.size, view.scale) for view in local} == {(96, (0.06, 0.36))}
    assert {view.flip for view in method.views} == {0.5}
    for view in (*masked, *local):
        assert view.jitter == ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, probability=0.8)
        assert (view.grayscale, view.blur, view.blur_sigma) == (0.2, 0.5, (0.1, 2.0))


def test_masks_depend_on_the_image_and_the_view() -> None:
    method = _stellar()
    batch = random_batch(method, 4)
    first, second = _visible(method, batch.keys)
    assert first.shape == (4, 3)
    assert _visible(method, batch.keys[2:3])[0].equal(first[2:3])
    assert not first.equal(second)
    everywhere = _visible(_stellar(focus=None), batch.keys)[0]
    assert not _visible(_stellar(focus=FocusConfig(probability=1.0)), batch.keys)[0].equal(everywhere)
    assert _visible(_stellar(focus=FocusConfig(probability=0.0)), batch.keys)[0].equal(everywhere)


@pytest.mark.parametrize(
    ("changes", "gone", "views"),
    [
        ({"reconstruction": None}, {"reconstruction"}, 5),
        ({"weights": Weights(cluster=0)}, {"cluster"}, 5),
        ({"weights": Weights(align=0)}, {"align"}, 5),
        ({"weights": Weights(cluster=0, align=0)}, {"cluster", "align"}, 5),
        ({"weights": Weights(cls_local=0)}, {"cls_local"}, 3),
        ({"class_vocabulary": None}, {"cls_cluster", "cls_masked", "cls_local"}, 3),
        ({"weights": Weights(align=0, cls_masked=0, koleo_masked=0)}, {"align", "cls_masked", "koleo_masked"}, 3),
        ({"weights": Weights(koleo=0, koleo_masked=0)}, {"koleo", "koleo_masked"}, 5),
    ],
)
def test_terms_can_be_switched_off(changes: dict[str, Any], gone: set[str], views: int) -> None:
    method = _stellar(**changes)
    assert len(method.views) == views
    batch = random_batch(method, 2)
    losses = method.loss(batch, PROGRESS)
    assert set(losses.terms) == set(_stellar().term_weights) - gone
    losses.total.backward()
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad), "no trained parameter is unused"


def test_warm_up_ends_after_its_share_of_steps() -> None:
    method = _stellar(warmup=WarmupConfig(share=0.25))
    steps = [step for step in range(40) if method.is_warming_up(Progress(step, 40, 4))]
    assert steps == list(range(10))
    assert not _stellar().is_warming_up(Progress(0, 40, 4))
    batch = random_batch(method, 2)
    before = copy.deepcopy(method.teacher_backbone.network.state_dict())
    method.after_update(Progress(10, 40, 4))
    assert all(before[name].equal(value) for name, value in method.teacher_backbone.network.state_dict().items())
    method.after_update(Progress(9, 40, 4))
    name = "network.blocks.0.attn.qkv.weight"
    expected = 0.996 * before[name] + 0.004 * method.backbone.state_dict()[name]
    torch.testing.assert_close(method.teacher_backbone.network.state_dict()[name], expected)
    with_teacher, without = (method.loss(batch, Progress(step, 40, 4)).terms["cluster"] for step in (9, 10))
    assert with_teacher != without


def test_the_encoder_returns_concepts_and_maps_and_can_be_saved(tmp_path: Path) -> None:
    method = _stellar()
    encoder = method.encoder().eval()
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    features = encoder.encode(images)
    assert features.sparse is not None
    assert features.where is not None
    assert features.sparse.shape == (2, 4, 32)
    assert features.where.shape == (2, 4, 4, 4)
    torch.testing.assert_close(features.where.sum(dim=1), torch.ones(2, 4, 4))
    encoder.save(tmp_path, step=3)
    again = load_encoder(tmp_path)
    assert isinstance(again, ConceptEncoder)
    loaded = again.encode(images)
    assert torch.equal(loaded.where, features.where)
    made = again.reconstruct(loaded.sparse, loaded.where)
    assert made.shape == images.shape
    assert torch.equal(made, encoder.reconstruct(features.sparse, features.where))
    swapped = again.reconstruct(loaded.sparse.flip(0), loaded.where)
    assert not torch.equal(swapped, made)


def test_without_reconstruction_there_are_no_maps(tmp_path: Path) -> None:
    method = _stellar(reconstruction=None)
    assert method.localization is None, "no term would train W1 and W2"
    method.encoder().save(tmp_path)
    again = load_encoder(tmp_path)
    assert isinstance(again, ConceptEncoder)
    features = again.encode(torch.rand(2, 3, 16, 16))
    assert features.where is None
    assert features.sparse is not None
    with pytest.raises(UserError, match=r"method\.reconstruction=null.*has no concept maps"):
        asterism.concepts(tmp_path, [torch.rand(3, 16, 16)], out=tmp_path / "page")


def test_starts_from_an_mae_run(tmp_path: Path) -> None:
    mae = Mae(
        MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2), TINY.model_copy(update={"positions": "sincos"})
    )
    mae.encoder().save(tmp_path)
    method = _stellar(warmup=WarmupConfig())
    report = load_weights_into(method.backbone, tmp_path)
    method.backbone_was_loaded()
    assert report.fresh == ("reg_token",)
    assert method.backbone.network.pos_embed.requires_grad
    assert method.backbone.network.blocks[1].mlp.fc1.weight.equal(mae.backbone.network.blocks[1].mlp.fc1.weight)
    student, teacher = method.backbone.state_dict(), method.teacher_backbone.network.state_dict()
    assert all(student[name].equal(teacher[name]) for name in student)


def test_codes_of_our_own_tokenizer_as_target(tmp_path: Path) -> None:
    vq = Vq(VqConfig(vocabulary=12, code_dim=4, decoder_dim=16, decoder_depth=1, decoder_heads=2), TINY)
    vq.encoder().save(tmp_path)
    config = DECODER.model_copy(update={"target": "codes", "tokenizer": str(tmp_path)})
    method = _stellar(reconstruction=config)
    losses = method.loss(random_batch(method, 2), PROGRESS)
    assert losses.weights["reconstruction"] == 0.05
    assert 1 < losses.terms["reconstruction"] < 5  # ln 12 for random guesses
    losses.total.backward()
    assert all(p.grad is None for p in method.reconstruction.tokenizer.parameters())
    method.encoder().save(tmp_path / "encoder.safetensors")
    again = load_encoder(tmp_path)
    features = again.encode(torch.rand(1, 3, 16, 16))
    assert again.reconstruct(features.sparse, features.where).shape == (1, 3, 16, 16)
    with pytest.raises(UserError, match=r"4×4 patches, but the tokenizer makes 8×8 codes.*image_size=16"):
        _stellar(reconstruction=config.model_copy(update={"image_size": 32}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 17}, "method.tokens = 17 concepts for 16 patches"),
        (
            {"vocabulary": VocabularyConfig(prototypes=3)},
            "method.tokens = 4 is more than method.vocabulary.prototypes = 3",
        ),
        ({"tokens": 1}, "method.weights.koleo=0 and method.weights.koleo_masked=0"),
        ({"masked_views": 0}, "method.masked_views = 0 leaves nothing to align"),
        (
            {
                "reconstruction": None,
                "class_vocabulary": None,
                "weights": Weights(cluster=0, align=0, koleo=0, koleo_masked=0),
            },
            "every term .* is off",
        ),
        (
            {"warmup": WarmupConfig(), "weights": Weights(align=0, cls_masked=0, koleo_masked=0)},
            "0 are in use.*keep a term that uses them",
        ),
        (
            {"reconstruction": None, "weights": Weights(**dict.fromkeys(Weights.model_fields, 0))},
            "every term .* is off",
        ),
        ({"mask_ratio": 0.95}, "leaves none of 16 patches"),
        ({"local_size": 6}, "method.local_size = 6 is not a multiple of the patch size 4"),
        ({"global_size": 18}, "method.global_size = 18 is not a multiple"),
        ({"warmup": WarmupConfig(), "masked_views": 1}, "raise method.masked_views"),
        ({"reconstruction": DECODER.model_copy(update={"decoder_heads": 3})}, "cannot have 3 heads"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _stellar(**changes)


def test_other_registers_and_missing_class_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="the registers are the concepts"):
        Stellar(CONFIG, TINY.model_copy(update={"registers": 3}))
    with pytest.raises(UserError, match=r"method\.class_vocabulary"):
        Stellar(CONFIG, TINY.model_copy(update={"class_token": False}))


def test_a_batch_of_one_image_is_refused() -> None:
    method = _stellar()
    with pytest.raises(UserError, match=r"trainer\.batch_size"):
        method.loss(random_batch(method, 1), PROGRESS)
