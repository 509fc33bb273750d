"""Shared fixtures, and the run-time check of every shape in the package's signatures.

`make test-all` asks for that check with ASTERISM_TYPES=1; small tests take half as long again with it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.folders import GOLDEN, REAL_DATA

if os.environ.get("ASTERISM_TYPES") == "1":
    import jaxtyping

    import tests.typechecker  # noqa: F401 - the hook looks it up by name

    jaxtyping.install_import_hook("asterism", "tests.typechecker.checked")

# Settings of the user, and what launchers and schedulers set: tests set their own.
_FOREIGN = (
    "ASTERISM_DATASETS",
    "ASTERISM_PATIENCE",
    "SLURM_",
    "TORCHELASTIC_",
    "MASTER_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
)

torch.set_num_threads(int(os.environ.get("ASTERISM_TEST_THREADS", "1")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take minutes start first, so that no worker is left alone with them at the end."""
    items.sort(key=lambda item: item.path.name != "test_first_steps.py")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests away from the user's cache; indices of real data are built once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name in os.environ:
            if name.startswith(_FOREIGN):
                patch.delenv(name)
        yield


def _existing(variable: str, path: Path) -> Path:
    if not path.is_dir():
        pytest.skip(f"{variable} is not set and {path} does not exist")
    return path


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of golden vectors: `ASTERISM_GOLDEN`, by default ../shared/golden."""
    return _existing("ASTERISM_GOLDEN", GOLDEN)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of small real data sets: `ASTERISM_DATA`, by default ../shared/data."""
    return _existing("ASTERISM_DATA", REAL_DATA)
