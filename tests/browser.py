"""Pages in headless Chromium: what it says about them, and how they are laid out."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --v=0 --virtual-time-budget=20000"
)
# A window has a least width, a frame has none; frames of files may not be looked into, so they tell.
_FRAME = """<!doctype html><body style="margin:0">
<script>addEventListener("message", event => {{ document.body.dataset.found = event.data }})</script>
<iframe src="measured.html" width="{width}" height="2000" style="border:0"></iframe>"""
_POLICY = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
_MEASURE = """<script>addEventListener("load", () => {
  const images = [...document.images], tables = [...document.querySelectorAll("table:not(.gallery)")];
  parent.postMessage(JSON.stringify({
    width: innerWidth, overflow: document.documentElement.scrollWidth - innerWidth,
    images: images.length, broken: images.filter(image => !image.naturalWidth).length,
    font: Math.min(...tables.map(table => parseFloat(getComputedStyle(table).fontSize))),
    cut: tables.filter(t => t.getClientRects().length && t.scrollWidth > t.parentElement.clientWidth
      && getComputedStyle(t.parentElement).overflowX != "auto").length,
  }), "*") })</script>"""


@dataclass(frozen=True)
class Seen:
    """What a page of some width looks like: numbers by name, and what the console says."""

    found: dict[str, Any]
    console: list[str]


def measured(page: Path, width: int, folder: Path) -> Seen:
    """Numbers from a copy without the page's security policy, which allows no script, not even the one that measures;
    and what the console says about the page as it is."""
    assert _POLICY.search(page.read_text())
    (folder / "measured.html").write_text(_POLICY.sub("", page.read_text()).replace("</body>", _MEASURE + "</body>"))
    (folder / "frame.html").write_text(_FRAME.format(width=width))
    answer = _run(folder, "--window-size=1400,2000", "--dump-dom", (folder / "frame.html").as_uri())
    found = re.search(r'data-found="([^"]*)"', answer.stdout)
    assert found, answer.stderr
    return Seen(json.loads(unescape(found.group(1))), _console(answer) + visited(page, folder).console)


@dataclass(frozen=True)
class Visited:
    """A page after its scripts, if it has any, have run."""

    document: str
    console: list[str]


def visited(page: Path, folder: Path) -> Visited:
    answer = _run(folder, "--dump-dom", page.as_uri())
    return Visited(answer.stdout, _console(answer))


def without_policy(page: Path, target: Path) -> Path:
    """A copy that only its escaping protects."""
    text, count = _POLICY.subn("", page.read_text())
    assert count == 1
    target.write_text(text)
    return target


def printed(page: Path, folder: Path) -> bytes:
    """The page as PDF."""
    target = folder / "page.pdf"
    _run(folder, f"--print-to-pdf={target}", "--no-pdf-header-footer", page.as_uri())
    return target.read_bytes()


def _console(answer: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in answer.stderr.splitlines() if "CONSOLE" in line]


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    command = [CHROMIUM, *_QUIET.split(), f"--user-data-dir={folder / 'profile'}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
