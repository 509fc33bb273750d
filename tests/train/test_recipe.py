import pytest
import torch

from asterism.config import write_yaml
from asterism.errors import UserError
from asterism.methods import method_names
from asterism.train.recipe import Recipe, find_recipe, load_recipe, recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_is_valid_and_has_a_summary(name):
    recipe = load_recipe(name, ["data.path=scenes"])
    assert recipe.method.name in method_names()
    assert find_recipe(name).read_text().startswith("# ")


def test_every_method_has_a_recipe_for_any_folder(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # without a GPU there is a small form
    for name in method_names():
        assert load_recipe(name, ["data.path=photos"]).trainer.batch_size == "auto", name


def test_a_recipe_survives_a_yaml_round_trip(tmp_path):
    recipe = load_recipe("dino-cifar10", ["method.jitter=null", "optim.betas=[0.8, 0.9]"])
    path = tmp_path / "again.yaml"
    path.write_text(write_yaml(recipe))
    assert load_recipe(str(path)) == recipe


def test_values_and_overrides_reach_the_recipe_in_this_order():
    recipe = load_recipe("dino", ["optim.lr=3e-4"], {"data": {"path": "photos"}, "optim": {"lr": 1.0, "clip": 2.0}})
    assert (recipe.data.path, recipe.optim.lr, recipe.optim.clip) == ("photos", 3e-4, 2.0)


def test_a_recipe_without_a_method_is_rejected():
    with pytest.raises(UserError, match=r"method\.name is required; choose from: .*dino"):
        Recipe.parse({"method": {"out_dim": 3}, "data": {"path": "x"}})
