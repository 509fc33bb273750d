"""Flaws of YAML are refused with their line; values that YAML 1.1 would change are kept."""

import pytest

from asterism.yaml_text import parse_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\noptim:\n  lr: 1e-3\n  lr: 1e-4\n", r"line 4: the key 'lr' is repeated \(first in line 3\)"),
        ("a: 1\na: 2\n", r"line 2: the key 'a' is repeated"),
        ("a: {b: 1, b: 2}", r"line 1: the key 'b' is repeated"),
        (f"x: 1\nseed: {'9' * 5000}\n", r"line 2: a number of 5,000 digits"),
        (f"seed: 0x{'f' * 9000}\n", r"line 1: a number of 9,002 digits"),
        ("a: " + "[" * 20_000, r"line 1: nested more than 50 levels"),
        ("{a: " * 20_000, r"line 1: nested more than 50 levels"),
        ("".join(f"{' ' * level}a:\n" for level in range(900)), r"line 50: nested more than 50 levels"),
        ("- " * 5000, r"line 1: nested more than 50 levels"),
        ("a: &a [*a]\n", r"nested more than 50 levels"),
        ("a: &a [x]\n" + "".join(f"a{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 9)}]\n" for i in range(9)),
         r"more than 100,000 values"),
        ("a: !!python/object/apply:os.system ['true']\n", r"line 1, column 4: could not determine a constructor"),
        ("method: dino\n---\nmethod: mae\n", r"line 2, column 1: but found another document"),
        ("method:\n\tname: dino\n", r"line 2, column 1: found character"),
        ("a: [b\n", r"line 2, column 1: expected"),
    ],
)  # fmt: skip
def test_flaws_are_refused_with_their_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_yaml(text)


def test_dates_are_text_and_exponents_are_numbers() -> None:
    assert parse_yaml("a: 2026-11-16\nb: 2026-11-16 10:00:00\nc: 3e-4\nd: 1e5\n") == {
        "a": "2026-11-16",
        "b": "2026-11-16 10:00:00",
        "c": 3e-4,
        "d": 1e5,
    }
