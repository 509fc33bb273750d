import io

import pytest
from rich.console import Console

from asterism.viz import bar
from asterism.viz.bar import Bar


def _shown(monkeypatch: pytest.MonkeyPatch, quiet_seconds: float, *, terminal: bool = True, rank: int = 0) -> str:
    screen = io.StringIO()
    monkeypatch.setattr(bar, "plain_console", lambda stderr: Console(file=screen, force_terminal=terminal, width=80))
    monkeypatch.setattr(bar, "rank", lambda: rank)
    monkeypatch.setattr(bar, "_QUIET_SECONDS", quiet_seconds)
    with Bar("birds", 40, 10) as shown:
        shown.advance(5)
    return screen.getvalue()


def test_long_work_is_shown_and_short_work_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _shown(monkeypatch, -1)
    assert "birds" in text
    assert "15/40" in text
    assert _shown(monkeypatch, 60) == ""


def test_log_files_and_other_processes_get_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, -1, terminal=False) == ""
    assert _shown(monkeypatch, -1, rank=1) == ""
