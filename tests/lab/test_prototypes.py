from pathlib import Path

import pytest
import torch

from asterism.errors import UserError
from lab.mechanisms.prototypes import drift, measure_drift, measure_use, prototype_use
from tests.train.tiny import pretrain, tiny_recipe

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def test_a_prototype_for_each_class_is_used_and_pure() -> None:
    use = prototype_use(torch.eye(4)[LABELS], LABELS)
    assert use.values() == pytest.approx(
        {"prototypes": 4, "used": 100, "effective": 4, "purity": 100, "purity_of_one": 25}
    )


def test_a_collapse_to_one_prototype_shows() -> None:
    use = prototype_use(torch.eye(4)[torch.zeros(8, dtype=torch.int64)], LABELS)
    assert (use.used, use.effective, use.purity) == pytest.approx((25, 1, 25))


def test_fixed_prototypes_do_not_drift_and_rotated_ones_do() -> None:
    rows = torch.eye(4)
    assert drift(rows, 3 * rows) == pytest.approx(0)
    assert drift(rows, rows.roll(1, 0)) == pytest.approx(1)


@pytest.mark.parametrize("method", ["dino", "ibot", "cribo", "sop"])
def test_the_prototypes_of_a_run_are_measured(method: str, tmp_path: Path) -> None:
    run = pretrain(tiny_recipe(method, trainer={"steps": 2}), tmp_path / "run")
    use = measure_use(run, images=32)
    assert use.prototypes == (12 if method == "sop" else run.recipe.method.out_dim)
    assert use.purity_of_one <= use.purity <= 100


@pytest.mark.slow
def test_drift_needs_learned_prototypes(tmp_path: Path) -> None:
    kept = {"every_steps": 1, "keep_last": 3}
    for name in ("dino", "ibot"):
        learned = pretrain(tiny_recipe(name, trainer={"steps": 3}, checkpoint=kept), tmp_path / name)
        assert list(measure_drift(learned)) == ["2", "3"]
    drawn = pretrain(tiny_recipe("sop", trainer={"steps": 1}), tmp_path / "sop")
    with pytest.raises(UserError, match="drawn anew"):
        measure_drift(drawn)
