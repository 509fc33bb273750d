"""Training on the CPU beside data workers: images per second for each number of threads, each in a process of its own.

    python benchmarks/threads.py --recipe demo --steps 60

OpenMP's threads wait for each other at the end of every operation. When workers take their cores, all of them wait.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    for threads in range(1, (os.cpu_count() or 1) + 1):
        rate = images_per_second(arguments.recipe, arguments.steps, arguments.workers, threads)
        print(f"{threads} threads beside {arguments.workers} workers: {rate:.0f} images/s")


def images_per_second(recipe: str, steps: int, workers: int, threads: int) -> float:
    """Best of the logged windows of a short run that keeps exactly this many threads."""
    keep = f"import torch; torch.set_num_threads({threads}); torch.set_num_threads = lambda count: None; "
    settings = [f"trainer.steps={steps}", "monitor.knn=null", "monitor.tensorboard=false", f"data.workers={workers}"]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        call = f"import asterism; asterism.pretrain(recipe={recipe!r}, out={str(run)!r}, overrides={settings!r})"
        subprocess.run([sys.executable, "-c", keep + call], check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return max(record["images_per_second"] for record in records)


if __name__ == "__main__":
    main()
