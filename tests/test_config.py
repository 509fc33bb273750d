import pytest

from asterism.config import Config, read_yaml, with_overrides
from asterism.errors import UserError
from asterism.train.recipe import load_recipe


class Inner(Config):
    depth: int = 3
    rate: float = 0.1


class Outer(Config):
    inner: Inner = Inner()
    maybe: Inner | None = None
    name: str = "x"


@pytest.mark.parametrize(
    ("setting", "word"), [("compile", "on"), ("compile", "off"), ("compile", "auto"), ("precision", "32")]
)
def test_words_that_yaml_takes_for_something_else(setting: str, word: str) -> None:
    assert getattr(load_recipe("dino-cifar10", [f"trainer.{setting}={word}"]).trainer, setting) == word


def test_overrides_reach_nested_settings_and_leave_the_original_alone():
    values = {"inner": {"depth": 1}, "method": "dino"}
    changed = with_overrides(values, ["inner.rate=3e-4", "method.tokens=8", "list=[1, 2]", "maybe=null"])
    assert changed == {
        "inner": {"depth": 1, "rate": 3e-4},
        "method": {"name": "dino", "tokens": 8},
        "list": [1, 2],
        "maybe": None,
    }
    assert values == {"inner": {"depth": 1}, "method": "dino"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inner": {"dept": 3}}, "unknown setting 'inner.dept'; did you mean 'inner.depth'?"),
        ({"maybe": {"rat": 3}}, "unknown setting 'maybe.rat'; did you mean 'maybe.rate'?"),
        ({"nane": "y"}, "unknown setting 'nane'; did you mean 'name'"),
        ({"zzz": 1}, "unknown setting 'zzz'; choose from: inner, maybe, name"),
        ({"inner": {"depth": "deep"}}, "inner.depth = 'deep': must be a whole number"),
    ],
)
def test_errors_name_the_place_and_the_fix(values, message):
    with pytest.raises(UserError) as error:
        Outer.parse(values)
    assert message in str(error.value)


def test_section_is_part_of_the_place():
    with pytest.raises(UserError, match=r"'method\.dept'.*'method\.depth'"):
        Inner.parse({"dept": 1}, section="method")


def test_file_errors(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, 2\n")
    with pytest.raises(UserError, match="not valid YAML"):
        read_yaml(broken)
    broken.write_text("- 1\n")
    with pytest.raises(UserError, match="expected a mapping"):
        read_yaml(broken)
