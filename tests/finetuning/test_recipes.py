"""The shipped recipes of fine-tuning, and how settings of a user replace theirs."""

from pathlib import Path

import pytest

from asterism.errors import UserError
from asterism.finetuning.recipe import find_finetune_recipe, finetune_recipe_names, load_finetune_recipe
from tests.finetuning.tiny import finetune
from tests.train.tiny import TEACHER


def test_every_shipped_recipe_is_valid_and_says_what_to_expect() -> None:
    for name in finetune_recipe_names():
        recipe = load_finetune_recipe("run", recipe=name)
        assert name.startswith(recipe.task.name.partition("-")[0])
        lines = find_finetune_recipe(name).read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# "), name
        assert any(line.startswith("# command:  asterism finetune") and f"--recipe {name}" in line for line in lines)
        assert any(line.startswith("# expected: ") for line in lines), name


@pytest.mark.parametrize(
    ("size", "epochs", "decay"), [("vits16", 200, 0.75), ("vitb16", 100, 0.65), ("vitl16", 50, 0.75)]
)
def test_published_lengths_and_layer_decays(size: str, epochs: int, decay: float) -> None:
    recipe = load_finetune_recipe("run", recipe=f"classify-imagenet-{size}")
    assert (recipe.trainer.epochs, recipe.optim.layer_decay) == (epochs, decay)
    dim = {"vits16": 384, "vitb16": 768, "vitl16": 1024}[size]
    assert (recipe.task.usual_epochs(dim), recipe.task.usual_layer_decay(dim)) == (epochs, decay)
    assert recipe.optim.peak_lr(1024) == pytest.approx(4e-3)


def test_a_list_replaces_the_share_of_a_recipe_and_a_length_its_length() -> None:
    name = "classify-imagenet-1percent"
    recipe = load_finetune_recipe("run", recipe=name, overrides=["data.label_list=names.txt", "trainer.steps=5"])
    assert (recipe.data.label_list, recipe.data.label_share) == ("names.txt", 1.0)
    assert (recipe.trainer.steps, recipe.trainer.epochs) == (5, "auto")
    assert load_finetune_recipe("run", recipe=name).data.label_share == 0.01


def test_another_head_replaces_the_settings_of_the_first() -> None:
    recipe = load_finetune_recipe("run", recipe="classify-imagenet-1percent", overrides=["head=linear"])
    assert recipe.task.model_dump()["head"] == {"name": "linear", "pooling": "auto", "norm": False, "std": 2e-5}
    recipe = load_finetune_recipe("run", task="classify", overrides=["head.norm=true", "data.path=x"])
    assert recipe.task.model_dump()["head"]["norm"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"task": "clasify"}, "unknown task 'clasify'; did you mean 'classify'"),
        ({"recipe": "classify-imagenet"}, "unknown recipe of fine-tuning 'classify-imagenet'; did you mean"),
        ({}, "give a task or a recipe: --task classify, or --recipe NAME"),
        ({"task": "classify", "recipe": "classify-scenes"}, "give a task or a recipe"),
        ({"task": "classify"}, "no labelled images given: use --data"),
        (
            {"task": "classify", "overrides": ["data.path=x", "head=liner"]},
            "unknown head 'liner'; did you mean 'linear'",
        ),
        ({"task": "classify", "overrides": ["data.path=x", "task.mixng=null"]}, "unknown setting 'task.mixng'"),
        (
            {"task": "classify", "overrides": ["data.path=x", "data.label_share=0.1", "data.label_list=a.txt"]},
            "give label_share or label_list, not both",
        ),
        (
            {"task": "probe", "overrides": ["data.path=x", "validation=null"]},
            "validation = null, but one of the 45 learning rates is chosen on held-out training images",
        ),
        (
            {"task": "probe", "overrides": ["data.path=x", "task.learning_rates=[]"]},
            "give one or several learning rates",
        ),
        ({"recipe": "missing.yaml"}, "no such file"),
        ({"task": "classify", "overrides": ["data.path=x", "source.path=b.pth"]}, "source.path cannot be set"),
    ],
)
def test_mistakes_are_named(words: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_finetune_recipe("run", **words)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "probe", "segment"])
def test_the_default_recipe_for_300_steps(task: str, tmp_path: Path) -> None:
    """Long enough for every augmentation to be drawn at its extremes."""
    short = "trainer.steps=300 trainer.batch_size=4 trainer.devices=1 data.workers=0 monitor.tensorboard=false"
    overrides = ["data.path=scenes:size=32,count=120", *short.split()]
    run = finetune(load_finetune_recipe(str(TEACHER), task=task, overrides=overrides), tmp_path / "run")
    assert [record["step"] for record in run.metrics() if "loss" in record][-1] == 300
