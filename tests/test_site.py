"""The documentation site: links, names of functions and settings, notebooks, scripts, and the built pages."""

import doctest
import functools
import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import docs.doctests
import docs.equations
import docs.figures
from asterism.cli.program import COMMANDS
from asterism.methods import method_class, method_names
from asterism.plugins import plugins
from docs import links
from docs.hooks import DOCS, ROOT, modules_of, public_names
from docs.notebooks import TUTORIALS, notebook
from tests.browser import CHROMIUM, visited

METHOD_PAGES = {
    "stellar": ("stellar",),
    "sop": ("sop",),
    "flsl": ("flsl",),
    "cribo": ("cribo",),
    "baselines": ("dino", "ibot", "mae"),
}
_BASH = re.compile(r"^```bash[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# ------------------------------------------------------------------------------------------------ links


def test_renamed_functions_and_broken_links_are_noticed() -> None:
    assert links.is_documented("asterism.methods.stellar.Stellar.encode")
    assert not links.is_documented("asterism.methods.stellar.Stellar.encodes")
    assert not links.is_documented("asterism.ops.koleo._nearest"), "private: not in the reference"
    assert links._missing("methods.md", "results.md#with-labels") is None
    assert links._missing("methods.md", "results.md#with-label") == "no such heading"
    assert links._missing("methods.md", "images/nothing.png") == "no such page or file"


def test_the_reference_has_all_public_names_and_ops() -> None:
    import asterism
    from asterism import ops

    assert {name.removeprefix("asterism.") for name in public_names()} == {*dir(asterism)} - {"ops", "__version__"}
    assert [name.removeprefix("asterism.ops.") for name in modules_of("ops")] == dir(ops)


# ------------------------------------------------------------------------------------- pages of the methods


def test_every_method_has_a_page() -> None:
    explained = {name for names in METHOD_PAGES.values() for name in names}
    assert set(method_names()) - explained == {"distill", "vq"}  # in docs/methods.md


@pytest.mark.parametrize("page", METHOD_PAGES)
def test_method_pages_are_complete(page: str) -> None:
    text = (DOCS / f"methods/{page}.md").read_text(encoding="utf-8")
    assert text.count("<svg ") == 1
    assert 'aria-label="' in text
    assert "../results.md" in text
    parts = re.split(r"^```equation\n.*?^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(parts) > 2
    for after in parts[1:]:  # every equation is followed by the functions that compute it
        assert "][asterism." in after.split("\n## ")[0], after[:200]


@pytest.mark.parametrize("page", METHOD_PAGES)
def test_settings_on_method_pages_exist(page: str) -> None:
    text = (DOCS / f"methods/{page}.md").read_text(encoding="utf-8")
    table = text.split("## Settings\n")[1].split("\n## ")[0]
    configs = [method_class(name).Config for name in METHOD_PAGES[page]]
    rows = re.findall(r"^\| (`method\.[^|]*)\|", table, re.MULTILINE)
    assert len(rows) >= 5
    for row in rows:
        first, *more = re.findall(r"`([\w.]+)`", row)
        parent = first.rpartition(".")[0]
        for setting in (first, *(name if "." in name else f"{parent}.{name}" for name in more)):
            assert any(_has(config, setting.split(".")[1:]) for config in configs), setting


def _has(config: type[BaseModel], path: list[str]) -> bool:
    field = config.model_fields.get(path[0])
    if field is None:
        return False
    inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
    return len(path) == 1 or any(_has(kind, path[1:]) for kind in inner if issubclass(kind, BaseModel))


@pytest.mark.parametrize("module", [docs.equations, docs.doctests, docs.figures], ids=lambda module: module.__name__)
def test_examples_of_the_site_s_own_code(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# ------------------------------------------------------------------------------------- notebooks and scripts


def test_a_notebook_has_all_the_code_in_order() -> None:
    text = "---\na: b\n---\n# T\n\n```bash\nasterism x\n```\nand\n```python\nx = 1\n```\n"
    text += "```text\nno\n```\nend [p](q.md#r)\n"
    cells = [(cell["cell_type"], cell["source"]) for cell in notebook(text)["cells"]]
    assert cells == [
        ("markdown", "# T"),
        ("code", "%%bash\nasterism x"),
        ("markdown", "and"),
        ("code", "x = 1"),
        ("markdown", "```text\nno\n```\nend [p](q.html#r)"),
    ]


def bash_blocks() -> list[tuple[str, str]]:
    return [(place, text) for place, page in links.pages().items() for text in _BASH.findall(page)]


def test_scripts_are_valid_bash() -> None:
    assert len(bash_blocks()) > 20
    for place, text in bash_blocks():
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{place}: {checked.stderr}"


def test_commands_in_the_documentation_exist() -> None:
    known = {*COMMANDS, *plugins("commands")}
    for place, page in links.pages().items():
        for block in re.findall(r"^```(?:bash[^\n]*)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
            for verb in re.findall(r"^(?:.* -m )?asterism ([a-z]\w*)", block, re.MULTILINE):
                assert verb in known, f"{place}: asterism {verb}"


# ------------------------------------------------------------------------------------- the built site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ".", "NO_MKDOCS_2_WARNING": "1", "HOME": str(folder)}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_the_site_asks_no_other_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    loads = re.compile(
        r"<(?:script|img|iframe|source|video)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*\shref=\"?(?:https?:)?//"
    )
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style
    assert len(list((site / "notebooks").glob("*.ipynb"))) == len(TUTORIALS)
    assert 'href="../api/ops/koleo.html#asterism.ops.koleo.koleo"' in (site / "methods/stellar.html").read_text()


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("width", "scheme"), [(1300, "light"), (390, "dark")])
def test_pages_in_a_browser(served: str, width: int, scheme: Any) -> None:
    """No message on the console, no request to another host, nothing wider than the window."""
    from playwright.sync_api import sync_playwright

    said: list[str] = []
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith(served) else None)
        for place in ("index.html", "methods/cribo.html", "api/ops/clustering.html"):
            page.goto(served + place, wait_until="load", timeout=120_000)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, place
            assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)"), place
        if width > 1000:
            page.fill("input.md-search__input", "mean-shift")
            page.wait_for_selector(".md-search-result__link", timeout=60_000)
        browser.close()
    assert said == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_site_opens_from_a_folder(site: Path, tmp_path: Path) -> None:
    seen = visited(site / "methods/flsl.html", tmp_path)
    assert seen.console == []
    assert "mean_shift" in seen.document
