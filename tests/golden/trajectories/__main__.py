"""Print the largest error of every group of quantities of every file, and its tolerance."""

import sys
from itertools import groupby
from pathlib import Path

import torch

from tests.folders import GOLDEN
from tests.golden.trajectories import adapter_of
from tests.golden.trajectories.compared import Compared


def share(compared: Compared) -> float:
    """Error divided by tolerance, to order quantities of different tolerance."""
    if compared.tolerance == 0:
        return 0.0 if compared.holds else float("inf")
    return compared.error / compared.tolerance


def main(paths: list[Path]) -> int:
    torch.set_num_threads(1)
    failed = 0
    print("| file | quantity | largest error | tolerance | error / tolerance |\n|---|---|---:|---:|---:|")
    for path in paths:
        compared = sorted(adapter_of(path).replay(path), key=lambda each: each.group)
        for group, members in groupby(compared, key=lambda each: each.group):
            worst = max(members, key=share)
            failed += not worst.holds
            print(f"| {path.name} | {group} | {worst.error:.2g} | {worst.tolerance:.2g} | {share(worst):.3f} |")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or sorted((GOLDEN / "trajectory").glob("*.npz"))))
