"""Every number of every configuration has bounds, and values outside are refused in one sentence."""

import importlib
import pkgutil
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pytest
from pydantic.fields import FieldInfo

import asterism
from asterism.config import Config, with_overrides
from asterism.errors import UserError
from asterism.finetuning.classification.timm_images import MixingConfig
from asterism.train.recipe import Recipe, load_recipe
from tests.campaigns.settings import PRETRAINING


def every_config() -> list[type[Config]]:
    for module in pkgutil.walk_packages(asterism.__path__, "asterism."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[Config]] = [Config]
    for config in found:
        found += [each for each in config.__subclasses__() if each.__module__.startswith("asterism")]
    return found[1:]


def numbers(annotation: Any, metadata: list[Any]) -> Iterator[tuple[type, list[Any]]]:
    """The numeric types inside an annotation, each with its own metadata."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *own = get_args(annotation)
        bounds = [part for each in own for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
        yield from numbers(inner, [*metadata, *bounds])
    elif origin in (Union, types.UnionType):
        for option in get_args(annotation):
            yield from numbers(option, metadata)
    elif annotation in (int, float):
        yield annotation, metadata
    elif origin is not None and origin is not Literal:
        for part in get_args(annotation):
            yield from numbers(part, [])


def is_bounded(metadata: list[Any]) -> bool:
    below = any(isinstance(each, annotated_types.Ge | annotated_types.Gt) for each in metadata)
    return below and any(isinstance(each, annotated_types.Le | annotated_types.Lt) for each in metadata)


def unbounded(config: type[Config]) -> list[str]:
    return [
        f"{config.__module__}.{config.__name__}.{name}"
        for name, field in config.model_fields.items()
        for _, metadata in numbers(field.annotation, list(field.metadata))
        if not is_bounded(metadata)
    ]


def test_every_number_has_bounds() -> None:
    found = every_config()
    assert len(found) > 50
    assert not [place for config in found for place in unbounded(config)]


def test_mixing_without_a_distribution() -> None:
    with pytest.raises(UserError, match="cutmix = 1e-320: is too small to compute with; give at least 1e-12"):
        MixingConfig.parse({"cutmix": 1e-320})
    assert MixingConfig(cutmix=0).cutmix == 0


OF_THE_NETWORK = {"backbone.heads=3", "backbone.image_size=17", "backbone.name=no_such_model"}  # found when it is built
OF_THE_MACHINE = {"trainer.devices=1000", "trainer.nodes=2", "data.workers=1000"}


@pytest.mark.parametrize("override", sorted(set(PRETRAINING.split()) - OF_THE_NETWORK - OF_THE_MACHINE))
def test_a_value_outside_its_range_is_named(override: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe("dino", ["data.path=scenes", override])
    message = str(error.value)
    assert override.partition("=")[0].partition(".")[0] in message
    assert "\n" not in message
    assert "constrained" not in message


def test_the_message_has_the_value_and_every_alternative() -> None:
    with pytest.raises(UserError) as error:
        Recipe.parse(with_overrides({}, ["method=dino", "data.path=x", "trainer.batch_size=0"]))
    assert str(error.value) == "trainer.batch_size = 0: must be at least 1, or must be 'auto'"
