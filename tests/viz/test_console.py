import pytest

from asterism.viz.console import plain_console, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jcleared", r"\x1b[2Jcleared"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("over\rwritten\b", r"over\rwritten\x08"),
        ("\x9b2J", r"\x9b2J"),
        ("gnp\u202e.exe", r"gnp\u202e.exe"),
        ("two\nlines\tand tabs", "two\nlines\tand tabs"),
        ("größer [red] :cat: 星 \udcff", "größer [red] :cat: 星 \udcff"),
    ],
)
def test_control_characters_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_the_console_prints_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("a [b]\x1b[31m :cat:")
    assert capsys.readouterr().out == "a [b]\\x1b[31m :cat:\n"
