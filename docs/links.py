"""Checks every local link of the documentation without building the site: `python -m docs.links`, about a second.

Pages, pictures and anchors must exist, and so must the source files that pages name, and every function that a page
names as `[text][asterism.module.name]`: such a link leads to the function's entry in the generated reference, with its
source. Modules are parsed, not imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from markdown.extensions.toc import slugify

from docs.hooks import DOCS, MOVED, PACKAGES, ROOT, generated_pages, public_names
from docs.notebooks import TUTORIALS

_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)
_MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HTML_LINK = re.compile(r"\b(?:href|src)=\"([^\"]+)\"")
_REFERENCE = re.compile(r"\]\[(asterism[\w.]*)\]")
_FILE = re.compile(r"`(\w+/[\w/]+\.py)\b")  # from the top of the repository, or inside the package
_REMOTE = re.compile(r"^[a-z][a-z+.-]*:", re.IGNORECASE)


def problems() -> Iterator[str]:
    """One sentence per link that leads nowhere."""
    for place, text in pages().items():
        prose = _FENCE.sub("", text)
        for target in (*_MARKDOWN_LINK.findall(_without_code(prose)), *_HTML_LINK.findall(prose)):
            if not _REMOTE.match(target) and (missing := _missing(place, target)):
                yield f"{place}: {target}: {missing}"
        for path in _FILE.findall(prose):
            if not any((top / path).exists() for top in (ROOT, ROOT / "asterism")):
                yield f"{place}: `{path}`: no such file"
        for name in _REFERENCE.findall(prose):
            if not is_documented(name):
                yield f"{place}: [{name}] is not in the reference: no such function, class or module"
    for name in ("README.md", *MOVED, *(f"lab/{path.name}" for path in sorted((ROOT / "lab").glob("*.md")))):
        prose = _without_code(_FENCE.sub("", (ROOT / name).read_text(encoding="utf-8")))
        for target in _MARKDOWN_LINK.findall(prose):
            path, _, anchor = target.partition("#")
            goal = (ROOT / name).parent / path if path else ROOT / name
            if _REMOTE.match(target):
                continue
            if not goal.exists():
                yield f"{name}: {target}: no such file"
            elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
                yield f"{name}: {target}: no such heading"


@cache
def pages() -> dict[str, str]:
    """All pages of the site by their place in it; Markdown."""
    found = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    return found | generated_pages()


@cache
def references() -> dict[str, set[str]]:
    """Every page of this folder, and the qualified names that it links to."""
    return {place: set(_REFERENCE.findall(_FENCE.sub("", text))) for place, text in pages().items()}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        plain = re.sub(r"\]\([^)]*\)|[`*\[\]]", "", heading)
        slug = name = slugify(plain, "-")
        number = 1
        while name in found:
            name, number = f"{slug}_{number}", number + 1
        found.add(name)
    return found


@cache
def is_documented(name: str) -> bool:
    """Whether the reference has an entry for a qualified name."""
    if name in public_names():
        return True
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        source = ROOT.joinpath(*parts[:length]).with_suffix(".py")
        if source.is_file():
            return parts[1] in PACKAGES and _defines(ast.parse(source.read_text(encoding="utf-8")), parts[length:])
    return False


def _defines(tree: ast.AST, names: list[str]) -> bool:
    if not names:
        return True
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == names[0]:
            return not node.name.startswith("_") and _defines(node, names[1:])
    return False


def _missing(place: str, target: str) -> str | None:
    """What is wrong with a link from a page, if anything."""
    path, _, anchor = unquote(target).partition("#")
    goal = _joined(place, path) if path else place
    goal = goal.removesuffix(".html") + ".md" if goal.endswith(".html") else goal
    notebooks = {f"notebooks/{Path(tutorial).stem}.ipynb" for tutorial in TUTORIALS}
    if goal not in pages() and goal not in notebooks and not (DOCS / goal).is_file():
        return "no such page or file"
    if anchor and goal in pages() and anchor not in anchors(pages()[goal]) and not is_documented(anchor):
        return "no such heading"
    return None


def _joined(place: str, path: str) -> str:
    parts: list[str] = []
    for part in (PurePosixPath(place).parent / path).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _without_code(text: str) -> str:
    return _CODE.sub("``", text)


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) or f"links: {len(pages())} pages, all links lead somewhere")
    sys.exit(bool(found))
