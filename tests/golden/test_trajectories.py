"""Our methods, given the official initial states, batches and draws, arrive where the official codes do."""

from pathlib import Path

import pytest

from tests.folders import GOLDEN
from tests.golden.trajectories import adapter_of

FILES = sorted((GOLDEN / "trajectory").glob("*.npz"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_trajectory(path: Path) -> None:
    compared = list(adapter_of(path).replay(path))
    assert compared, f"nothing of {path.name} was compared"
    wrong = [str(each) for each in compared if not each.holds]
    assert not wrong, f"{len(wrong)} of {len(compared)} quantities of {path.name} are off:\n" + "\n".join(wrong)


def test_there_are_files(golden: Path) -> None:
    assert FILES, f"{golden / 'trajectory'} has no .npz files"
