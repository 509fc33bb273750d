"""Averaging gradients among the processes of one machine: through shared memory, and through gloo over the loopback.

    python -m lab.benchmarks.shared_memory --processes 2 --repeats 200

Both average the same tensors in turn, in the same processes; the median of each counts, because a process also waits
for the others.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from asterism.ops.shared_memory import Ends, SharedMemory, open_ends

SIZES = (1, 1_000, 500_000, 5_000_000)  # numbers; the networks of the small recipes have half a million weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--as-process", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.as_process:
        rank, port, memory, wires = json.loads(arguments.as_process)
        measure(rank, arguments.processes, port, Ends(memory, wires), arguments.repeats)
        return
    store = dist.TCPStore("127.0.0.1", 0, arguments.processes, is_master=True, wait_for_workers=False)
    first, *rest = open_ends(arguments.processes)
    others = [
        subprocess.Popen(
            [sys.executable, *sys.argv, "--as-process", json.dumps([rank, store.port, ends.memory, ends.wires])],
            pass_fds=(ends.memory, *ends.wires),
        )
        for rank, ends in enumerate(rest, start=1)
    ]
    for ends in rest:
        ends.close()
    measure(0, arguments.processes, store.port, first, arguments.repeats, store)
    for other in others:
        other.wait()


def measure(rank: int, processes: int, port: int, ends: Ends, repeats: int, store: dist.TCPStore | None = None) -> None:
    store = store or dist.TCPStore("127.0.0.1", port, processes, is_master=False)
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    os.environ["GLOO_SOCKET_IFNAME"] = loopback
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    shared = SharedMemory(rank, processes, ends)
    for size in SIZES:
        values = torch.full((size,), float(rank))
        gloo, memory = [], []
        for _ in range(max(10, repeats // (1 + size // 100_000))):
            gloo.append(seconds(lambda values=values: dist.all_reduce(values.clone(), op=dist.ReduceOp.SUM)))
            memory.append(seconds(lambda values=values: shared.mean_(values.clone())))
        slow, fast = 1e3 * statistics.median(gloo), 1e3 * statistics.median(memory)
        if rank == 0:
            print(
                f"{size:9,} numbers: gloo {slow:7.3f} ms, shared memory {fast:7.3f} ms, {slow / fast:.1f} ×", flush=True
            )
    dist.destroy_process_group()


def seconds(action: Callable[[], object]) -> float:
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


if __name__ == "__main__":
    main()
