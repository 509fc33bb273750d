"""The Dockerfile, as far as it can be checked without a container engine: its files, commands and variants exist."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    lines = re.sub(r"(?m)^\s*#.*\n", "", TEXT).replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def values(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def test_copied_files_exist_and_are_sent_to_the_engine() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    copied = [name for line in values("COPY") for name in line.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name in sent, name


def test_the_package_is_installed_with_an_extra_that_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = re.findall(r"'\.\[(\w+)\]'", TEXT)
    assert extra in project["optional-dependencies"]
    for file in (project["readme"], *project["license-files"]):
        assert file in " ".join(values("COPY")), file  # the build reads them
