import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from asterism.train import building
from asterism.train.cost import step_cost
from asterism.train.online_quality import verdict
from asterism.train.optim import OptimConfig
from asterism.train.outlook import Pace, of_minutes
from asterism.train.plan import plan as plan_of
from asterism.train.recipe import Recipe, load_recipe
from asterism.types import Batch, Losses, Progress
from tests.train.tiny import METHODS, TEACHER, pretrain, tiny_recipe


@pytest.mark.parametrize("name", ["mae", "dino", "cribo", "stellar"])
def test_the_cost_of_a_step_grows_with_its_images_and_leaves_the_method_unchanged(name: str) -> None:
    assert name in METHODS
    method = building.build_method(tiny_recipe(name))
    before = {key: value.clone() for key, value in method.state_dict().items()}
    small, large = step_cost(method, OptimConfig(), 2), step_cost(method, OptimConfig(), 20)
    assert all(value.equal(before[key]) for key, value in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())
    assert large.checkpoint == small.checkpoint
    assert 5 < large.flops / small.flops < 11
    assert large.memory > small.memory


def test_half_precision_and_checkpointing_take_less_memory() -> None:
    def memory(precision: str, **backbone: bool) -> int:
        recipe = tiny_recipe("dino", backbone={"depth": 6, "dim": 64, **backbone})
        return step_cost(building.build_method(recipe), recipe.optim, 64, precision=precision).memory

    assert memory("bf16") < 0.8 * memory("32")
    assert memory("32", checkpointing=True) < 0.6 * memory("32")


def test_flops_are_those_of_the_matrices() -> None:
    """MAE without decoder blocks is small enough to count by hand: a linear layer has 2·in·out per row, and twice that
    in the backward pass."""
    recipe = tiny_recipe(
        "mae", method={"decoder_depth": 1, "mask_ratio": 0.75}, backbone={"depth": 1, "drop_path": 0.0}
    )
    method = building.build_method(recipe)
    matrices = {name: p for name, p in method.named_parameters() if p.ndim >= 2 and "weight" in name}
    visible, patches, images = 4 + 1, 16 + 1, 10
    rows = {name: visible if name.startswith("backbone") else patches for name in matrices}
    least = sum(3 * 2 * p.numel() * rows[name] for name, p in matrices.items()) * images
    flops = step_cost(method, recipe.optim, images).flops
    assert 0.8 * least < flops < 1.5 * least  # attention adds a little, pixels need no gradient


def test_a_plan_is_made_even_if_the_batch_and_the_moments_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    method = building.build_method(tiny_recipe("mae"))
    loss = method.loss

    def small_batches(batch: Batch, progress: Progress) -> Losses:
        if len(batch.index) > 4:
            raise torch.OutOfMemoryError("of a GPU")
        return loss(batch, progress)

    def no_room(optimizer: torch.optim.Optimizer) -> None:
        raise torch.OutOfMemoryError("of a GPU")

    monkeypatch.setattr(method, "loss", small_batches)
    monkeypatch.setattr(torch.optim.AdamW, "step", no_room)
    assert 0 < step_cost(method, OptimConfig(), 64).seconds < 60
    assert all(parameter.grad is None for parameter in method.parameters())


def test_a_plan_estimates_the_cost_of_a_run() -> None:
    plan = plan_of(tiny_recipe("mae"))
    assert (plan.images, plan.steps, plan.processes) == (40, 6, 1)
    assert plan.hours == pytest.approx(6 * plan.cost.seconds / 3600)
    assert plan.disk == 3 * plan.cost.checkpoint
    rows = dict(zip(*(column.cells for column in plan.table().columns), strict=True))
    assert set(rows) == {"arithmetic", "memory", "step", "epoch", "whole run", "disk"}


def test_a_machine_without_gpu_gets_the_small_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "method: mae\ndata: {path: scenes}\nbackbone: {depth: 12}\non_cpu: {backbone: {depth: 2, dim: 64}}\n"
    )

    def backbone(*overrides: str) -> tuple[int | None, int | None]:
        recipe = load_recipe(str(tmp_path / "r.yaml"), overrides)
        return recipe.backbone.depth, recipe.backbone.dim

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backbone() == (2, 64)
    assert backbone("backbone.depth=3") == (3, 64), "the user's settings come last"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backbone() == (12, None)
    assert backbone("trainer.accelerator=cpu") == (2, 64)


def test_a_length_of_ones_own_replaces_that_of_the_small_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer = load_recipe("dino", ["data.path=scenes", "trainer.steps=7"]).trainer
    assert (trainer.steps, trainer.minutes, trainer.batch_size) == (7, None, 64)
    assert load_recipe("dino", ["data.path=scenes", "trainer.minutes=3"]).trainer.minutes == 3


@pytest.mark.parametrize("name", [*METHODS, "sove", "massl"])
def test_every_method_has_a_small_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    teacher = [f"method.teacher={TEACHER}"] if name == "distill" else []
    recipe = load_recipe(name, ["data.path=scenes", *teacher])
    assert recipe.trainer.minutes is not None
    method = building.build_method(recipe)
    assert sum(p.numel() for p in method.parameters() if p.requires_grad) < 4e6
    assert max(view.size for view in method.views) <= 64


def test_the_pace_is_known_after_four_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 160.0])
    monkeypatch.setattr("asterism.train.outlook.time.monotonic", lambda: next(clock))
    pace = Pace(Progress(0, 180, 10))
    assert [pace.is_known(Progress(step, 180, 10)) for step in range(1, 6)] == [False, False, False, True, False]
    assert pace.seconds == 20


def test_minutes_that_are_too_few_name_what_would_help() -> None:
    assert of_minutes(20, 4000, 100, "a GPU") == "At this speed 20 min are 4,000 steps, 40.0 epochs"
    assert of_minutes(20, 5000, 9000, "a GPU") == "At this speed 20 min are 5,000 steps, 0.6 epochs"
    for steps, per_epoch in ((80, 67), (290, 100), (2, 1)):
        assert "too few to learn much. More fit with more minutes, a GPU" in of_minutes(8, steps, per_epoch, "a GPU")
    plan = plan_of(tiny_recipe("mae", trainer={"steps": None, "minutes": 0.0001}))
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(plan)
    assert "too few to learn much. More fit with more minutes, smaller views" in console.export_text()


def test_the_verdict_compares_with_the_start_and_with_pixels() -> None:
    def says(end: float, pixels: float | None = 36.0, name: str = "knn", epochs: float = 9.0) -> str | None:
        first = {"step": 0, name: 28.0} | ({} if pixels is None else {f"{name}_pixels": pixels})
        return verdict([first, {"step": 5, "epoch": epochs, "loss": 1.0}, {"step": 9, name: end}])

    assert "Learned: k-NN accuracy on held-out training images went from 28.0 % at the start to 42.0 %" in (
        says(42) or ""
    )
    assert "raw pixels reach 36.0 %" in (says(42) or "")
    assert (says(35) or "").startswith("Learned, but not ahead of raw pixels (36.0 %)")
    assert (says(29) or "").startswith("No clear gain")
    assert (says(20) or "").startswith("Not learned")
    assert "optim.lr" in (says(20, epochs=50.0) or "")
    assert "its length: 1.5 epochs, so each image was seen 1.5 times" in (says(20, epochs=1.5) or "")
    assert "recognised in another view" in (says(60, None, "view_retrieval") or "")
    assert verdict([{"step": 9, "knn": 40.0}]) is None


def test_runs_without_labels_measure_view_retrieval(tmp_path: Path) -> None:
    from tests.evals.samples import write_colours

    photos = write_colours(tmp_path / "photos", 12, size=(24, 24))
    for file in photos.glob("*/*.png"):
        file.rename(photos / f"{file.parent.name}-{file.name}")
    settings = {"data": {"path": str(photos), "workers": 0}, "monitor": {"knn": {}, "tensorboard": False}}
    run = pretrain(tiny_recipe("mae", **settings), tmp_path / "run")
    records = [record for record in run.metrics() if "view_retrieval" in record]
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4, 5, 6]
    assert "view_retrieval_pixels" in records[0]
    assert all(0 <= record["view_retrieval"] <= 100 for record in records)
    assert isinstance(Recipe.parse(run.config), Recipe)
