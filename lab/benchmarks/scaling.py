"""Training with 1, 2 and 4 processes on this machine: images per second, and CPU time per image.

    python -m lab.benchmarks.scaling [--recipe dino] [--processes 1 2 4] [--steps 30] [--images 32]

The global batch is the same for any number of processes. Each number runs twice, with few and with more steps, and the
difference of both is counted, so that starting costs nothing. Wall time depends on what else the machine does and on
its cores; CPU time per image shows what synchronisation and repeated work add.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_FEW = 5  # steps of the shorter run
SMALL = ["backbone.image_size=32", "backbone.patch_size=4", "backbone.dim=128", "backbone.depth=4"]
QUIET = ["data.workers=0", "monitor.knn=null"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="dino")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--images", type=int, default=32, help="global batch")
    options = parser.parse_args()
    print("| processes | images/s | CPU ms per image |\n|---:|---:|---:|")
    for processes in options.processes:
        few, more = (run(options.recipe, processes, steps, options.images) for steps in (_FEW, _FEW + options.steps))
        images = options.steps * options.images
        wall, cpu = (b - a for a, b in zip(few, more, strict=True))
        print(f"| {processes} | {images / wall:.1f} | {1e3 * cpu / images:.1f} |", flush=True)


def run(recipe: str, processes: int, steps: int, images: int) -> tuple[float, float]:
    """Wall and CPU seconds of a run, with all its processes."""
    before, start = _cpu(), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        settings = [f"trainer.devices={processes}", f"trainer.steps={steps}", f"trainer.batch_size={images}"]
        command = [sys.executable, "-m", "asterism", "pretrain", recipe, "--data", "scenes:size=32,count=512"]
        command += ["--out", str(Path(place) / "run"), "trainer.accelerator=cpu", *settings, *SMALL, *QUIET]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True)
    return time.perf_counter() - start, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
