"""What the site has besides the pages of this folder: MkDocs calls these functions while it builds.

- The reference: a page for every module of `PACKAGES`, so that equations can link to the function that computes them.
- Contributing and changelog, which live at the top of the repository, with their links moved.
- A notebook for every tutorial (`docs/notebooks.py`), and a link to it on the tutorial's page.
- Pages that `mkdocs.yml` does not list are added to Guides, so that none is forgotten.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from docs.notebooks import TUTORIALS, notebook

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGES = ("ops", "methods", "nn")
MOVED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Complete the navigation."""
    sections = {title: entry[title] for entry in config.nav for title in entry}
    sections["Guides"] += unlisted_pages(config.nav)
    first = sections["Reference"].index("api/index.md") + 1
    sections["Reference"][first:first] = [
        {f"asterism.{package}": [{"Overview": f"api/{package}.md"}, *_entries(package)]} for package in PACKAGES
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for place, text in generated_pages().items():
        files.append(File.generated(config, place, content=text))
    for place in TUTORIALS:
        name = f"notebooks/{Path(place).stem}.ipynb"
        text = json.dumps(notebook((DOCS / place).read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
        files.append(File.generated(config, name, content=text + "\n"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A tutorial links to its notebook."""
    place = page.file.src_uri
    if place in TUTORIALS:
        up = "../" * place.count("/")
        link = f"[Notebook]({up}notebooks/{Path(place).stem}.ipynb){{ .notebook }}\n\n"
        markdown = re.sub(r"(?m)^(# .*\n+)", lambda title: title.group(1) + link, markdown, count=1)
    return markdown


def on_post_build(config: Any) -> None:
    """Write the search index as a script too: pages that are opened from a folder load that."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")


def unlisted_pages(nav: list[Any]) -> list[str]:
    """Pages at the top of this folder that the navigation lacks."""
    listed = set(_places(nav))
    return [path.name for path in sorted(DOCS.glob("*.md")) if path.name not in listed]


def generated_pages() -> dict[str, str]:
    """Every generated page: its place on the site, and its Markdown."""
    pages = {target: _moved((ROOT / source).read_text(encoding="utf-8")) for source, target in MOVED.items()}
    pages["api/index.md"] = _interface()
    for package in PACKAGES:
        pages[f"api/{package}.md"] = _overview(package)
        for module in modules_of(package):
            pages[_page_of(package, module)] = f"::: {module}\n    options: {{heading_level: 1}}\n"
    return pages


def modules_of(package: str) -> list[str]:
    """Qualified names of a package's modules, in and below it."""
    folder = ROOT / "asterism" / package
    paths = sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def _entries(package: str) -> list[dict[str, str]]:
    return [{module.removeprefix(f"asterism.{package}."): _page_of(package, module)} for module in modules_of(package)]


def _page_of(package: str, module: str) -> str:
    return f"api/{package}/{module.removeprefix(f'asterism.{package}.')}.md"


def _overview(package: str) -> str:
    lines = [f"# asterism.{package}", "", _docstring(f"asterism.{package}"), "", "| module | about |", "|---|---|"]
    for module in modules_of(package):
        name = module.removeprefix(f"asterism.{package}.")
        first = _docstring(module).split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| [`{name}`]({package}/{name}.md) | {first} |")
    return "\n".join(lines) + "\n"


def public_names() -> list[str]:
    """The qualified names of `asterism.__all__` and of the commands of satellites, functions before classes."""
    tree = ast.parse((ROOT / "asterism/__init__.py").read_text(encoding="utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shown = [name for name in names if name not in ("__version__", "ops")]
    shown += project["entry-points"]["asterism.commands"]
    return [f"asterism.{name}" for name in sorted(shown, key=lambda name: (name[0].isupper(), name))]


def _interface() -> str:
    options = "    options: {show_root_full_path: false, show_root_heading: true}\n"
    return _PUBLIC + "\n".join(f"::: {name}\n{options}" for name in public_names())


_PUBLIC = """# The public interface

`import asterism` is fast: names are loaded on first use. Functions have the names of the commands, and settings those
of the YAML recipes. A mistake of the caller raises [`UserError`](#asterism.UserError). The version is
`asterism.__version__`, and [`asterism.ops`](ops.md) has the equations.

"""


def _docstring(module: str) -> str:
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""


def _moved(markdown: str) -> str:
    """The text of a page at the top of the repository, with links as they are from here."""

    def target(found: re.Match[str]) -> str:
        place = found.group(1)
        return f"]({MOVED.get(place, place.removeprefix('docs/'))})"

    return _LINK.sub(target, markdown)


def _places(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [place for entry in (nav.values() if isinstance(nav, dict) else nav) for place in _places(entry)]
