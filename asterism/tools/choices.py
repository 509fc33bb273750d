"""Lists of methods, recipes, studies and so on, with a line about each, read from the source files without imports."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from asterism.config import shipped_yaml
from asterism.data import dataset_names
from asterism.errors import UserError, unknown
from asterism.evals import protocol_summaries
from asterism.finetuning.registry import task_summaries
from asterism.methods import method_summaries
from asterism.nn.weights.packaged import packaged_models
from asterism.plugins import plugins

_FAMILIES = ("vision_transformer.py", "eva.py", "swin_transformer.py")  # timm files with models that are supported


class Entries(dict[str, str]):
    """Summaries by name."""

    def __rich__(self) -> Table:
        table = Table("name", "description", box=None, pad_edge=False, header_style="bold")
        table.columns[0].no_wrap = True
        for name, summary in self.items():
            table.add_row(name, summary)
        return table


def entries(kind: str, substring: str = "") -> Entries:
    """Summaries by name of all entries of one kind whose name contains `substring`."""
    lists = kinds()
    if kind not in lists:
        raise unknown("list", kind, lists)
    found = Entries({name: text for name, text in lists[kind]().items() if substring.lower() in name.lower()})
    if not found:
        raise UserError(f"no {kind} with {substring!r} in the name; `asterism list {kind}` shows all")
    return found


def recipes() -> dict[str, str]:
    """Shipped recipes; the first comment of each is its summary. Those of fine-tuning follow those of pretraining."""
    return yaml_summaries("recipes") | yaml_summaries("recipes/finetuning")


def models() -> dict[str, str]:
    """Models of the package, then models of timm that can be a backbone, as timm describes them."""
    timm = importlib.util.find_spec("timm")
    if timm is None or not timm.submodule_search_locations:
        raise UserError("the package 'timm' is not installed: pip install timm")
    folder = Path(timm.submodule_search_locations[0]) / "models"
    found = packaged_models()
    for family in _FAMILIES:
        for definition in (folder / family).read_text(encoding="utf-8").split("@register_model\n")[1:]:
            if match := re.match(r'def (\w+)\([^)]*\).*?:\n\s*(?:"""(.*?)""")?', definition, re.DOTALL):
                found[match[1]] = " ".join((match[2] or "").split())
    return found


def yaml_summaries(folder: str) -> dict[str, str]:
    """The first comment of every YAML file in a folder of the package, by name."""
    return {name: _first_comment(path) for name, path in shipped_yaml(folder).items()}


def _first_comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ").rstrip() for line in lines if line.startswith("#") and line.strip("# ")), "")


_OWN: dict[str, Callable[[], dict[str, str]]] = {
    "methods": method_summaries,
    "tasks": task_summaries,
    "recipes": recipes,
    "datasets": dataset_names,
    "protocols": protocol_summaries,
    "models": models,
}


def kinds() -> dict[str, Callable[[], dict[str, str]]]:
    """What can be listed."""
    return _OWN | {name: lambda plugin=plugin: plugin.load()() for name, plugin in plugins("lists").items()}
