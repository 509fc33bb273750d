"""How many built-in scenes are drawn per second on one core: parameters, image, masks and boxes.

    python -m lab.benchmarks.scenes

Prints the best and the median of several rounds, in wall-clock and CPU time: on a busy machine, wall-clock time also
counts other work.
"""

from __future__ import annotations

import statistics
import time

import torch

from asterism.data.sources.scenes import Scenes

ROUNDS = 9
SCENES = 300


def main() -> None:
    torch.set_num_threads(1)
    started = time.perf_counter()
    Scenes(count=1)[0]
    print(f"first scene, with the tables made once per process: {time.perf_counter() - started:.2f} s")
    print(f"{'size':>7}  {'best':>12}  {'median':>12}  {'CPU time, best':>16}")
    for size in (32, 64, 128, 256):
        source = Scenes(size=size, count=SCENES)
        clock, processor = zip(*(_round(source) for _ in range(ROUNDS)), strict=True)
        best, median = SCENES / min(clock), SCENES / statistics.median(clock)
        print(f"{size:4d} px  {best:10.0f}/s  {median:10.0f}/s  {SCENES / min(processor):14.0f}/s")
    labels = Scenes(count=SCENES)
    started = time.perf_counter()
    for index in range(SCENES):
        labels.label(index)
    print(f"labels without drawing: {SCENES / (time.perf_counter() - started):.0f}/s")


def _round(source: Scenes) -> tuple[float, float]:
    """Wall-clock and CPU seconds for all scenes."""
    clock, processor = time.perf_counter(), time.process_time()
    for index in range(len(source)):
        source[index]
    return time.perf_counter() - clock, time.process_time() - processor


if __name__ == "__main__":
    main()
