"""The versions that the matrix installs are those that the project declares."""

from __future__ import annotations

import pytest

from tests.matrix import requirements


@pytest.mark.parametrize("package", ["torch", "timm", "pillow", "numpy"])
def test_versions(package: str) -> None:
    oldest, tested, newest = (requirements(name)[package] for name in ("oldest", "tested", "newest"))
    assert oldest == newest.replace(">=", "==")
    assert tested.startswith(f"{package}==")
    number = [tuple(map(int, line.partition("==")[2].split("."))) for line in (oldest, tested)]
    assert number[0] <= number[1]
