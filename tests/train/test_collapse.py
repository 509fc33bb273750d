import math
from pathlib import Path

import pytest
import torch

from asterism.ops.effective_rank import SpreadWindow, effective_rank
from asterism.train.collapse import CollapseWatch
from tests.train.tiny import METHODS, pretrain, tiny_recipe

UNIFORM = {"cls": math.log(1024), "patch": math.log(64)}
HEALTHY = {
    "loss": 5.0,
    "loss/cls": 3.0,
    "loss/patch": 2.0,
    "target_entropy": 2.5,
    "kl": 0.5,
    "effective_rank": 20.0,
    "feature_std": 0.8,
    "lr": 1e-3,
}
LONG, SHORT = 1000, 10  # records


def watched(records: int = LONG, rank: float = 20.0) -> CollapseWatch:
    watch = CollapseWatch(UNIFORM, records)
    watch.begin(4, rank)
    return watch


def warnings_of(watch: CollapseWatch, changes: dict[str, float], records: int) -> list[str | None]:
    return [watch.check(10 * (1 + i), HEALTHY | changes) for i in range(records)]


def test_a_healthy_run_gets_no_warning():
    assert not any(warnings_of(watched(), {}, 200))
    assert not any(warnings_of(watched(SHORT), {"effective_rank": 13.0}, SHORT))


def test_a_loss_flat_at_ln_k_is_named_once():
    messages = warnings_of(watched(), {"loss/cls": math.log(1024) * (1 + 1e-4)}, 100)
    assert [place for place, message in enumerate(messages) if message] == [29]
    assert "the loss 'cls' stays at ln K = 6.931" in messages[29]


def test_a_loss_that_only_passes_ln_k_is_not_a_collapse():
    watch = watched()
    losses = [math.log(1024)] * 29 + [6.0] + [math.log(1024)] * 29
    assert all(watch.check(i, HEALTHY | {"loss/cls": loss}) is None for i, loss in enumerate(losses))


def test_falling_rank_is_named_with_its_numbers_and_suggestions():
    messages = warnings_of(watched(SHORT, rank=19.0), {"effective_rank": 8.0}, 7)
    assert [place for place, message in enumerate(messages) if message] == [1]
    assert "the features lose rank: 19 → 8 in 16 steps" in messages[1]
    assert "optim.lr (now 1.0e-03)" in messages[1]
    assert "backbone.init=width" in messages[1]


def test_rank_is_compared_only_with_its_initial_value():
    watch = CollapseWatch(UNIFORM, SHORT)
    assert not any(warnings_of(watch, {"effective_rank": 4.0}, 5))
    watch.begin(50, 5.0)
    assert not any(warnings_of(watch, {"effective_rank": 4.0}, 5))


def test_rank_near_one_is_named_sooner_in_a_short_run():
    def places(records: int) -> list[int]:
        watch = CollapseWatch({}, records)
        return [i for i, message in enumerate(warnings_of(watch, {"effective_rank": 1.02}, 10)) if message]

    assert places(LONG) == [4]
    assert places(SHORT) == [1]
    assert "effective rank 1.02" in (warnings_of(CollapseWatch({}, SHORT), {"effective_rank": 1.02}, 2)[1] or "")


def test_equal_embeddings_are_named():
    assert any(
        "collapsed" in (message or "") for message in warnings_of(CollapseWatch({}, LONG), {"feature_std": 1e-4}, 5)
    )


def test_uniform_targets_are_named():
    messages = warnings_of(watched(SHORT), {"target_entropy": 0.999 * math.log(1024)}, SHORT)
    assert [place for place, message in enumerate(messages) if message] == [2]
    assert "the targets are uniform" in messages[2]
    assert "lower warmup_teacher_temp" in messages[2]
    assert not any(warnings_of(watched(SHORT), {"target_entropy": 0.98 * math.log(1024)}, SHORT))


def test_one_prototype_for_all_is_named_but_definite_targets_that_differ_are_not():
    messages = warnings_of(watched(SHORT), {"target_entropy": 0.01, "kl": 0.02}, SHORT)
    assert "every image to the same prototype" in messages[1]
    assert not any(warnings_of(watched(SHORT), {"target_entropy": 0.01, "kl": 0.5}, SHORT))


def test_a_window_of_small_batches_measures_what_one_batch_cannot():
    rows = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    window = SpreadWindow(48)
    for number, batch in enumerate(rows.split(8)):
        window.add(batch)
        assert window.is_full == (number >= 5)
    assert window.measure()["effective_rank"] == pytest.approx(float(effective_rank(rows[-48:])), rel=1e-5)
    assert window.measure()["effective_rank"] > 20 > float(effective_rank(rows[:8]))


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "momentum", "warns"), [(5e-4, 0.99, False), (1e-2, 0.9, True)])
def test_a_real_run_of_sixty_steps_warns_only_when_it_collapses(
    tmp_path: Path, lr: float, momentum: float, warns: bool
) -> None:
    wide = METHODS["dino"] | {"out_dim": 128, "hidden_dim": 128, "bottleneck_dim": 32, "local_views": 0}
    calm = {"freeze_last_layer": 0, "warmup_teacher_temp_epochs": 0, "teacher_temp": 0.04, "solarize": 0.0}
    recipe = tiny_recipe(
        method={"name": "dino", **wide, **calm, "global_scale": [0.4, 1.0], "momentum": momentum},
        backbone={"dim": 64, "depth": 3, "drop_path": 0.0},
        data={"path": "scenes:size=16,count=64", "keep_mb": 16},
        optim={"lr": lr, "lr_scaling": "none"},
        trainer={"steps": 60, "batch_size": 32},
        monitor={"log_every": 5},
    )
    records = pretrain(recipe, tmp_path / "run").metrics()
    warnings = [(record["step"], record["warning"]) for record in records if "warning" in record]
    ranks = [record["effective_rank"] for record in records]
    if warns:
        assert warnings[0][0] <= 45
        assert "the features lose rank" in warnings[0][1]
    else:
        assert not warnings
        assert min(ranks) > 0.8 * ranks[0]
