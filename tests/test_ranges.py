"""Every number of every configuration has bounds, and values outside are refused in one sentence."""

from __future__ import annotations

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
from asterism.ranges import Count, Positive
from asterism.train.recipe import Recipe, load_recipe


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


def test_the_walk_finds_a_number_without_bounds() -> None:
    class Loose(Config):
        fine: Count | Literal["auto"] = 1
        also_fine: tuple[Positive, ...] = ()
        half: Annotated[float, annotated_types.Ge(0)] = 0.0
        nested: tuple[Count, int] = (1, 1)
        free: dict[str, float] | None = None

    assert [place.rpartition(".")[2] for place in unbounded(Loose)] == ["half", "nested", "free"]


BAD = [
    "trainer.batch_size=0",
    "trainer.batch_size=-8",
    "trainer.steps=0",
    "trainer.steps=-5",
    "trainer.steps=1.5",
    "trainer.steps=99999999999999999999999",
    "trainer.epochs=.nan",
    "trainer.epochs=.inf",
    "trainer.epochs=0",
    "trainer.epochs=-1",
    "trainer.minutes=.nan",
    "trainer.devices=0",
    "trainer.nodes=0",
    "trainer.seed=99999999999999999999999",
    "trainer.seed=-1",
    "optim.lr=-1e-3",
    "optim.lr=.nan",
    "optim.lr=.inf",
    "optim.lr=1e999",
    "optim.betas=[0.9, 1]",
    "optim.betas=[0.9]",
    "optim.weight_decay=.nan",
    "optim.warmup_epochs=.inf",
    "optim.clip=.nan",
    "monitor.log_every=0",
    "monitor.knn.k=0",
    "monitor.knn.bank=0",
    "checkpoint.keep_every=0",
    "checkpoint.keep_last=0",
    "checkpoint.every_minutes=-1",
    "data.path=5",
    "data=5",
    "data=[photos]",
    "method.name=[a]",
    "method.name=5",
    "method={}",
    "method=[]",
    "trainer=5",
    "trainer=[steps]",
    "backbone.depth=999999999",
    "backbone.drop_path=1",
    "method.local_scale=[0.4, 0.1]",
]


@pytest.mark.parametrize("override", BAD)
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
