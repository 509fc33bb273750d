"""Segmentation from few examples: heads, balance of classes, and what is expected from examples that are left out."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from asterism import api
from asterism.images.masks import VOID, save_mask
from asterism.ops.propagation import largest_share, largest_upsampled
from asterism.ops.segmentation_metrics import scores
from asterism.tools.labelled_patches import Example, LabelledPatches
from asterism.tools.leave_one_out import BALANCES, _spread, chosen, estimate, helpers, unseen
from asterism.tools.patch_labellers import Vote, balanced, frequencies, labeller, trained_head
from tests.data.clips import frame_and_mask, write_frames
from tests.evals.samples import MeanColours
from tests.tools.test_segment import SETTINGS

GRID = (4, 4)


def example(seed: int, labels: Tensor, centres: Tensor, noise: float = 0.3) -> Example:
    """Patches around the centre of their class; the mask has one pixel per patch."""
    draw = torch.Generator().manual_seed(seed)
    features = centres[labels.clamp(max=len(centres) - 1)] + noise * torch.randn(len(labels), 6, generator=draw)
    shares = torch.nn.functional.one_hot(labels.clamp(max=len(centres) - 1), len(centres)).float()
    shares[labels == VOID] = 0
    return Example(features, shares, GRID, labels.to(torch.uint8).reshape(GRID))


def memory(count: int = 4, rare: int = 1, noise: float = 0.3) -> LabelledPatches:
    """Mostly class 0, half as much class 1, and `rare` patches of class 2 in each example."""
    centres = torch.eye(3, 6)
    labels = torch.tensor([0] * (11 - rare) + [1] * 5 + [2] * rare)
    return LabelledPatches(tuple(example(n, labels, centres, noise) for n in range(count)), torch.tensor([0, 3, 9]))


def test_balanced_probabilities_are_those_of_a_slow_loop() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]])
    frequency = [0.8, 0.15, 0.05]
    found = balanced(p, torch.tensor(frequency), 0.5, 2.0)
    for row, ours in zip(p.tolist(), found.tolist(), strict=True):
        raw = [(value / share**0.5) ** 2.0 for value, share in zip(row, frequency, strict=True)]
        assert ours == pytest.approx([value / sum(raw) for value in raw], rel=1e-5)
    assert balanced(p, torch.tensor(frequency), 0.0)[0].tolist() == pytest.approx(p[0].tolist(), rel=1e-5)
    assert balanced(p, torch.tensor(frequency), 1.0).argmax(1).tolist() == [2, 2]


def test_the_vote_is_that_of_a_slow_loop() -> None:
    known = memory()
    query = torch.randn(3, 6, generator=torch.Generator().manual_seed(8))
    found = Vote(known, 5, 0.1)(query)
    for row, ours in zip(query, found, strict=True):
        cosines = torch.nn.functional.cosine_similarity(row[None], known.features)
        best = cosines.argsort(descending=True)[:5]
        weights = (cosines[best] / 0.1).exp()
        torch.testing.assert_close(ours, (weights[:, None] * known.shares[best]).sum(0) / weights.sum())


@pytest.mark.parametrize("head", ["vote", "trained"])
def test_what_is_expected_is_measured_without_the_example_itself(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.tools.leave_one_out._ALIKE", 99)  # all others help
    known = memory(noise=0.9)
    found = estimate(known, (head,), (0.5,), 5, 0.07)  # type: ignore[arg-type]
    assert found is not None
    right, union = torch.zeros(3), torch.zeros(3)
    for number, each in enumerate(known.examples):
        others = known.part([n for n in range(4) if n != number])
        soft = labeller(head, others, 5, 0.07)(each.features)  # type: ignore[arg-type]
        made = balanced(soft, frequencies(others), 0.5).argmax(1)
        true = each.shares.argmax(1)
        for c in range(3):
            right[c] += ((made == c) & (true == c)).sum()
            union[c] += ((made == c) | (true == c)).sum()
    assert list(found.iou) == [0, 3, 9]
    assert list(found.iou.values()) == pytest.approx((right / union).tolist())
    assert found.mean == pytest.approx(float((right / union).mean()))


def alike_pairs(count: int = 8) -> LabelledPatches:
    """Frames in pairs: the two are the same but for noise, and the classes look different in every pair."""
    labels = torch.tensor([0] * 8 + [1] * 4 + [2] * 4)
    draws = [torch.randn(3, 6, generator=torch.Generator().manual_seed(number // 2)) for number in range(count)]
    found = tuple(example(number, labels, centres, 0.05) for number, centres in enumerate(draws))
    return LabelledPatches(found, torch.tensor([0, 3, 9]))


def test_examples_that_look_like_the_tested_one_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its twin would promise what no new image will have."""
    twins = estimate(alike_pairs(), ("vote",), (0.0,), 5, 0.07)
    assert twins is not None
    monkeypatch.setattr("asterism.tools.leave_one_out._ALIKE", 99)
    promised = estimate(alike_pairs(), ("vote",), (0.0,), 5, 0.07)
    assert promised is not None
    assert promised.mean > 0.9
    assert twins.mean < 0.6


def test_the_last_example_of_a_class_is_kept() -> None:
    known = alike_pairs()
    similarity = torch.zeros(8, 8)
    similarity[:, 0] = similarity[0] = torch.arange(8.0)  # the later, the more like the first one
    assert helpers(known, [0], similarity) == [1, 2, 3, 4, 5]
    odd = example(7, torch.tensor([0] * 12 + [1] * 4), torch.eye(3, 6))
    no_nines = LabelledPatches((known.examples[0], *[odd] * 5, known.examples[6], odd), known.classes)
    assert helpers(no_nines, [0], similarity) == [1, 2, 3, 4, 5, 6]


def test_a_setting_that_is_better_by_chance_is_not_chosen() -> None:
    """Two classes, four examples. One setting is a little better everywhere, the other much better in one example."""

    def rows(*right: int) -> Tensor:
        return torch.stack([torch.tensor([[50 + each, 50 - each], [50 - each, 50 + each]]) for each in right])

    known, plain = torch.tensor([True, True]), rows(10, 10, 10, 10)
    assert chosen({("vote", 0.0): plain, ("vote", 1.0): rows(13, 14, 13, 14)}, known) == ("vote", 1.0)
    assert chosen({("vote", 0.0): plain, ("vote", 1.0): rows(40, 8, 3, 4)}, known) == ("vote", 0.0)
    assert chosen({("vote", 0.0): plain, ("trained", 0.0): rows(9, 9, 9, 9)}, known) == ("vote", 0.0)


def test_settings_that_differ_by_chance_promise_nothing() -> None:
    """Eleven settings that are right in 70 % of the pixels, give or take: the best of them would promise more."""
    draw, known = torch.Generator().manual_seed(0), torch.tensor([True, True])
    promised, taken = [], []
    for _ in range(60):
        counts = {}
        for number in range(11):
            right = (70 + 8 * torch.randn(8, generator=draw)).round().long()
            wrong = 100 - right
            counts["vote", number / 10] = torch.stack([right, wrong, wrong, right], dim=1).reshape(8, 2, 2)
        taken.append(float(scores(counts[chosen(counts, known)].sum(0)).iou.mean()))
        promised.append(float(scores(unseen(counts, known).sum(0)).iou.mean()))
    truth = 70 / 130
    assert sum(taken) / 60 > truth + 0.02  # what the chosen setting has on the examples that chose it
    assert sum(promised) / 60 == pytest.approx(truth, abs=0.01)


def test_each_example_is_measured_with_the_choice_of_the_others() -> None:
    draw, known = torch.Generator().manual_seed(1), torch.tensor([True, True, True])
    counts = {("vote", balance): torch.randint(1, 50, (5, 3, 3), generator=draw) for balance in BALANCES}
    for number, found in enumerate(unseen(counts, known)):
        kept = [other for other in range(5) if other != number]
        setting = chosen({setting: torch.stack([each[i] for i in kept]) for setting, each in counts.items()}, known)
        assert torch.equal(found, counts[setting][number])


def test_the_error_is_the_jackknife() -> None:
    found = estimate(memory(count=6, noise=0.9), ("vote",), (0.0,), 5, 0.07)
    assert found is not None
    assert 0 < found.error < 0.5
    parts = [0.1, 0.4, 0.2, 0.3]
    mean = sum(parts) / 4
    without = [(sum(parts) - each) / 3 for each in parts]
    usual = (sum((each - mean) ** 2 for each in parts) / 3 / 4) ** 0.5  # of a mean the two agree
    assert _spread(without) == pytest.approx(usual)


def test_confidence_is_the_accuracy_on_examples_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.tools.leave_one_out._ALIKE", 99)
    known = memory(count=8, noise=0.9)
    found = estimate(known, ("trained",), (0.0,), 5, 0.07)
    assert found is not None
    sure = right = 0.0
    for number, each in enumerate(known.examples):
        others = known.part([n for n in range(8) if n != number])
        soft = balanced(trained_head(others)(each.features), frequencies(others), 0.0, found.sharpness)
        confidence, place = soft.max(1)
        sure += float(confidence.sum())
        right += float((place == each.shares.argmax(1)).sum())
    assert sure / right == pytest.approx(1, abs=0.06)


def test_a_class_of_one_example_is_not_estimated_and_one_example_gives_nothing() -> None:
    whole = memory(rare=0)
    odd = example(9, torch.tensor([0] * 8 + [2] * 8), torch.eye(3, 6))
    mixed = LabelledPatches((*whole.examples, odd), whole.classes)
    found = estimate(mixed, ("vote",), (0.0,), 5, 0.07)
    assert found is not None
    assert found.iou[9] is None
    assert found.iou[3] is not None
    assert estimate(memory(count=1), ("vote", "trained"), BALANCES, 5, 0.07) is None


def test_the_confidence_map_is_the_share_of_the_chosen_class() -> None:
    shares = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0)).softmax(0)
    wide = torch.nn.functional.interpolate(shares[None], (13, 10), mode="bilinear")[0]
    assert largest_upsampled(shares, (13, 10), 50).equal(wide.argmax(0).to(torch.uint8))
    assert (largest_share(shares, (13, 10), 50).float() / 255 - wide.amax(0)).abs().max() < 1 / 255


def _labelled(folder: Path, count: int) -> Path:
    write_frames(folder / "images", count)
    (folder / "masks").mkdir()
    for number in range(count):
        save_mask(frame_and_mask(number)[1], folder / f"masks/{number:05d}.png")
    return folder


def test_a_folder_gets_masks_confidences_and_what_to_expect(tmp_path: Path) -> None:
    new = write_frames(tmp_path / "new", 2)
    found = api.segment(MeanColours(2), _labelled(tmp_path / "labelled", 4), new, tmp_path / "out", **SETTINGS)
    assert found.estimate is not None
    assert min(value for value in found.estimate.iou.values() if value is not None) > 0.8
    with Image.open(tmp_path / "out/confidence/00001.png") as levels:
        assert levels.mode == "L"
        assert levels.size == (32, 24)
        assert np.asarray(levels).mean() / 255 == pytest.approx(found.confidence["00001"], abs=1e-3)
    summary = json.loads((tmp_path / "out/segmentation.json").read_text())
    assert summary["expected_iou"] == {str(number): value for number, value in found.estimate.iou.items()}
    assert summary["examples_left_out"] == 4
    assert found.warnings() == []


def test_one_example_works_and_says_that_nothing_is_known(tmp_path: Path) -> None:
    new = write_frames(tmp_path / "new", 2)
    found = api.segment(MeanColours(2), _labelled(tmp_path / "labelled", 1), new, tmp_path / "out", **SETTINGS)
    assert found.estimate is None
    assert found.warnings() == [
        "nothing can be said about the quality, because there is one example; label another image to get an estimate"
    ]


def test_a_poor_class_is_warned_of(tmp_path: Path) -> None:
    """Masks that have nothing to do with the pictures."""
    examples = write_frames(tmp_path / "labelled", 3)
    for number in range(3):
        draw = torch.Generator().manual_seed(number)
        save_mask((torch.rand(24, 32, generator=draw) < 0.1).long(), examples / f"{number:05d}.png")
    found = api.segment(MeanColours(2), examples, write_frames(tmp_path / "new", 1), tmp_path / "out", **SETTINGS)
    assert any("an IoU below 25% is expected for class 1" in warning for warning in found.warnings())
