"""`python -m tests.matrix [oldest|tested|newest ...]`: the quick tests with other versions of our dependencies.

oldest: the lower bounds of pyproject.toml; tested: constraints.txt; newest: what the package index has today. Each gets
an environment of its own in build/matrix. `--beneath PYTHON` installs only torch, timm, Pillow and numpy there, above
the packages of another environment, which takes a minute; `--only pillow,timm` fewer of them. What follows `--tests`
goes to pytest.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_HOME = _ROOT / "build/matrix"
_FEW = ("torch", "torchvision", "timm", "pillow", "numpy")
# What libraries deprecate in each other is no failure of ours.
_LENIENT = [f"-Wdefault::{kind}Warning" for kind in ("Future", "Deprecation", "PendingDeprecation")]
NAMES = ("oldest", "tested", "newest")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--beneath", type=Path, metavar="PYTHON", help="its packages are used where none is installed")
    parser.add_argument("--only", default=",".join(_FEW), metavar="PACKAGES", help="with --beneath: what is installed")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, default=["-m", "not slow"], help="last: words for pytest")
    chosen = parser.parse_args(words)
    failed = []
    for name in chosen.names or NAMES:
        python = _environment(name, chosen.beneath, chosen.only.split(","))
        call = [python, "-m", "pytest", "-q", *(() if name == "tested" else _LENIENT), *chosen.tests]
        code = subprocess.run(call, cwd=_ROOT, check=False).returncode
        if code:
            failed.append(name)
    print(f"failed with versions: {', '.join(failed)}" if failed else "all tests passed with all versions")
    return int(bool(failed))


def requirements(name: str) -> dict[str, str]:
    """What pip has to satisfy, by package: of our direct dependencies, or for `tested` of all packages."""
    if name == "tested":
        lines = (_ROOT / "constraints.txt").read_text().splitlines()
        return {line.partition("==")[0].lower(): line for line in lines if "==" in line}
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    found = {re.split("[<>=]", line)[0]: line for line in project["dependencies"]}
    return {package: line.replace(">=", "==") if name == "oldest" else line for package, line in found.items()}


def _environment(name: str, beneath: Path | None, only: Sequence[str]) -> Path:
    folder, wanted = _HOME / (name if beneath is None else f"{name}-above"), requirements(name)
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--upgrade"]
    if beneath is not None:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own, below = (subprocess.check_output([each, "-c", code], text=True).strip() for each in (python, beneath))
        (Path(own) / "beneath.pth").write_text(f"{below}\n")
        subprocess.run([*install, "--no-deps", *(wanted[package] for package in only)], check=True)
        return python
    pins = _HOME / f"{name}.txt"
    pins.write_text("\n".join(wanted.values()))
    subprocess.run([*install, "--constraint", str(pins), "--editable", f"{_ROOT}[dev]"], check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())
