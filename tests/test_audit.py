from __future__ import annotations

import pytest

from tests import audit

CLEAN = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "X-1", "aliases": ["Y-1"], "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "c", "skip_reason": "no answer"}


def test_what_an_audit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert audit.report([CLEAN]) == ("No known vulnerabilities in 1 packages", False)
    assert audit.report([CLEAN, BAD]) == ("b 2: X-1, fixed in 2.1", True)
    assert "does not answer for 1 of 2" in audit.report([CLEAN, SKIPPED])[0], "skipped packages are not clean ones"
    monkeypatch.setattr(audit, "EXCEPTIONS", {"Y-1": "the affected function is not used"})
    assert audit.report([CLEAN, BAD])[1] is False


def test_every_exception_is_documented() -> None:
    text = (audit.PINNED.parent / "docs" / "security.md").read_text(encoding="utf-8")
    assert all(name in text for name in audit.EXCEPTIONS)
