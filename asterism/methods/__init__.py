"""One file per method. A new file here is a new method: it needs no registration. Other packages add more, and a run
may name a file that is not installed: `asterism pretrain ./my_method.py`."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from asterism.errors import UserError, reason_of, unknown
from asterism.inputs import read_text
from asterism.plugins import first_line, plugins

if TYPE_CHECKING:
    from asterism.methods.base import Method
    from asterism.nn.backbone import BackboneConfig


METHOD_FILE = "method.py"  # in a run folder: the copy of a file that is not installed


@dataclass(frozen=True)
class LoadedFile:
    """A method from a file that is not installed."""

    name: str
    method: type[Method]
    sha256: str  # of the text
    text: str


_loaded: dict[str, LoadedFile] = {}  # by name


def method_names() -> list[str]:
    """Names of all methods, without importing them."""
    return sorted({*_files(), *plugins("methods"), *_loaded})


def method_summaries() -> dict[str, str]:
    """The first line of every method's file, by name."""
    added = {name: plugin.summary() for name, plugin in plugins("methods").items()}
    return dict(sorted((added | {name: first_line(file) for name, file in _files().items()}).items()))


def method_class(name: str) -> type[Method]:
    """The method defined by the file of this name, by a package that is installed, or by a file that was loaded."""
    if name in _loaded:
        return _loaded[name].method
    if name in _files():
        return _methods_of(importlib.import_module(f"{__name__}.{name}"))[0]
    if name not in plugins("methods"):
        raise unknown("method", name, method_names())
    found: type[Method] = plugins("methods")[name].load()
    return found


def load_method_file(path: Path, sha256: str | None = None) -> LoadedFile:
    """Run a file that defines one method, which `method_class` then knows by its name.

    sha256: of the content that is expected, if it is known. What has been loaded before is not read again.
    """
    for loaded in _loaded.values():
        if loaded.sha256 == sha256:
            return loaded
    text = read_text(path)
    found = hashlib.sha256(text.encode()).hexdigest()
    if sha256 not in (None, found):
        raise UserError(
            f"{path} is not the file that the run was started with (SHA-256 {found[:8]}…, then {sha256[:8]}…); restore "
            "it, or start a new run from the weights (--init RUN)"
        )
    module = ModuleType(f"asterism_file_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # pydantic looks up annotations there
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise UserError(f"{path} cannot be imported: {type(error).__name__}: {reason_of(error)}") from error
    methods = _methods_of(module)
    if len(methods) != 1:
        names = " and ".join(method.__name__ for method in methods)
        raise UserError(
            f"{path} defines {names or 'no method'}; it must define exactly one class derived from "
            "asterism.methods.base.Method"
        )
    (method,) = methods
    if method.__abstractmethods__:
        raise UserError(f"{method.__name__} in {path} lacks {', '.join(sorted(method.__abstractmethods__))}")
    default = method.Config.model_fields["name"].default
    name = default if isinstance(default, str) else path.stem
    if name in _files() or name in plugins("methods"):
        raise UserError(f"the method in {path} is called {name!r}, as an installed one is; give it another name")
    _loaded[name] = LoadedFile(name, method, found, text)
    return _loaded[name]


def create_method(name: str, backbone: BackboneConfig | Mapping[str, Any] | None = None, **settings: Any) -> Method:
    """A method with fresh weights, for a training loop of your own: its settings, and those of its backbone.

    Seed torch before, if the weights should be the same every time.
    """
    from asterism.nn.backbone import BackboneConfig

    kind = method_class(name)
    network = backbone if isinstance(backbone, BackboneConfig) else BackboneConfig.parse(backbone or {}, "backbone")
    return kind(kind.Config.parse({"name": name, **settings}, "method"), network)


def _files() -> dict[str, Path]:
    paths = sorted(Path(__file__).parent.glob("*.py"))
    return {path.stem: path for path in paths if path.stem not in ("__init__", "base")}


def _methods_of(module: ModuleType) -> list[type[Method]]:
    """The methods that a module defines, without classes that others there are derived from."""
    from asterism.methods.base import Method

    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Method)]
    own = [value for value in dict.fromkeys(classes) if value.__module__ == module.__name__]
    return [value for value in own if not any(value in other.__bases__ for other in own)]
