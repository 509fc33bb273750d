import math
from pathlib import Path

import pytest
import torch

from asterism.data.parts import DataChoice
from asterism.evals.mode_purity import ModePurity, ModePurityConfig, mode_agreement
from tests.evals.samples import small_encoder
from tests.evals.segmented_samples import write_camvid

LABELS = torch.tensor([0, 0, 1, 1, 1, 2])


def test_tokens_that_encode_their_class_group_only_that_class() -> None:
    found = mode_agreement(100 * torch.eye(3)[LABELS], LABELS, scale=1.0).mean(0)
    assert found[0].item() == pytest.approx(1)
    assert found[2].item() == pytest.approx(5 / 6)  # the only token of its class has no match


def test_identical_tokens_group_by_chance() -> None:
    weight, chance, _, entropy = mode_agreement(torch.ones(6, 4), LABELS, scale=1.0).mean(0).tolist()
    assert weight == pytest.approx(chance) == pytest.approx((2 * 2 + 3 * 3 + 1) / 36)
    assert entropy == pytest.approx(1)


def test_weights_equal_the_slow_loop() -> None:
    """A slow loop: softmax of scale/√d · z·z'."""
    tokens, scale = torch.randn(6, 4), 0.7
    found = mode_agreement(tokens, LABELS, scale)
    for i in range(6):
        raw = [math.exp(scale / 2 * float(tokens[i] @ tokens[j])) for j in range(6)]
        same = sum(weight for j, weight in enumerate(raw) if LABELS[j] == LABELS[i]) / sum(raw)
        assert found[i, 0].item() == pytest.approx(same, rel=1e-5)


def test_it_runs_on_images_with_masks(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 2, "test": 3}, size=(16, 32))
    config = ModePurityConfig(workers=0)
    evaluation = ModePurity(config, ModePurity.open_parts(config, DataChoice(str(tmp_path))))
    values = dict(evaluation.measure(small_encoder()))
    assert list(values) == ModePurity.value_names(config)
    assert values["chance"] == pytest.approx(50)
