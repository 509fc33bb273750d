"""Colour settings reach the views of every method that has them."""

import pytest

from asterism.methods import method_class, method_names
from asterism.methods.parts.views import ColorsConfig
from asterism.train.building import build_method
from asterism.types import ColorJitter
from tests.train.tiny import tiny_recipe

COLORED = [name for name in method_names() if issubclass(method_class(name).Config, ColorsConfig)]


def test_all_methods_with_several_views_have_them() -> None:
    own = {name for name in method_names() if method_class(name).__module__.startswith("asterism.")}  # not of files
    assert set(COLORED) & own == own - {"mae", "vq"}


@pytest.mark.parametrize("name", COLORED)
def test_settings_reach_every_view_that_changes_colours(name: str) -> None:
    jitter = ColorJitter(hue=0.02)
    recipe = tiny_recipe(name)
    changed = {"jitter": jitter, "grayscale": 0.03, "blur_sigma": (0.4, 0.5)}
    views = build_method(recipe.model_copy(update={"method": recipe.method.model_copy(update=changed)})).views
    colored = [view for view in views if view.blur > 0]
    assert len(colored) >= min(2, len(views))
    for view in colored:
        assert (view.jitter, view.grayscale, view.blur_sigma) == (jitter, 0.03, (0.4, 0.5))
