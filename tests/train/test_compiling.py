"""Compiled parts are single graphs and compute what eager code computes."""

import subprocess
import sys

import pytest

METHODS = ["dino", "ibot", "mae", "sop", "flsl", "cribo", "stellar"]


@pytest.mark.slow
def test_compiled_is_eager_in_one_graph_per_part() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.train.compiled_steps", *METHODS], capture_output=True, text=True, check=False
    )
    *equal, graphs, heads = run.stdout.splitlines() or ["", ""]
    assert equal == [f"equal: {name}" for name in METHODS], run.stderr[-2000:]
    assert graphs == "graphs: 2", "every size or temperature was compiled anew"
    assert heads == "head graphs: 2", "every number of rows was compiled anew"
