"""Given the official initial states, batches and draws, our methods reproduce the official training steps."""

from pathlib import Path

import numpy as np
import pytest

from tests.folders import GOLDEN
from tests.golden.trajectories import adapter_of
from tests.golden.trajectories.compared import Compared

FILES = sorted((GOLDEN / "trajectory").glob("*.npz"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_trajectory(path: Path) -> None:
    compared = list(adapter_of(path).replay(path))
    assert compared, f"nothing of {path.name} was compared"
    wrong = [str(each) for each in compared if not each.holds]
    assert not wrong, f"{len(wrong)} of {len(compared)} quantities of {path.name} are off:\n" + "\n".join(wrong)


def test_there_are_files(golden: Path) -> None:
    assert FILES, f"{golden / 'trajectory'} has no .npz files"


def test_a_file_without_an_adapter_fails() -> None:
    with pytest.raises(LookupError, match=r"unheard_of.npz must match FILES of one module"):
        adapter_of(Path("unheard_of.npz"))


@pytest.mark.parametrize(
    ("ours", "error"),
    [([1.0, 2.0], 0.0), ([1.0, 2.5], 0.5), ([1.0, np.nan], np.inf), ([np.inf, 2.0], np.inf), ([1.0], np.inf)],
)
def test_an_error_is_the_largest_difference_or_infinite(ours: list[float], error: float) -> None:
    compared = Compared("final/head", np.array(ours), np.array([1.0, 2.0]), tolerance=0.1)
    assert compared.error == error
    assert compared.holds == (error <= 0.1)
    assert str(compared).startswith(f"final/head: error {error:.3g}, tolerance 0.1")
