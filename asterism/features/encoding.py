"""Encoding the images of a source with every core.

By default worker processes read images, and this process encodes them. On a CPU, the threads that share the work on a
small matrix synchronise after every operation. There, each worker encodes what it reads, with one thread, and this
process stores what they send (`lab/benchmarks/encoding.py`).
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import torch

from asterism.data import Loaded, Loader, Sample, Source
from asterism.data.loader import Make
from asterism.data.order import each_once
from asterism.data.workers import cores
from asterism.nn.encoder import Encoder
from asterism.ops.collectives import world_size
from asterism.ranges import FewFromZero

_WORTH_HELPERS, _WORTH_COPIES = 2000, 200  # images
_SHARE = 4  # batches for each process that encodes, at least: else some wait for the last
_SMALL = 30_000_000  # parameters up to which processes are faster than threads: a ViT-S, but not a ViT-B

Workers = FewFromZero | Literal["auto"]
Batch = TypeVar("Batch")
Result = TypeVar("Result")


def encoded(
    encoder: Encoder,
    source: Source,
    make: Make[Batch],
    encode: Callable[[Batch], Result],
    *,
    batch_size: int,
    workers: Workers = "auto",
) -> Iterator[Loaded[Result | None]]:
    """`encode(make(images))` for every batch of a source, in order; None if no image of the batch can be read.

    `encode` must depend on nothing but the batch. workers: processes that read; auto: as many as help, which may encode
    as well.
    """
    order = each_once(len(source), batch_size)
    processes = encoding_processes(encoder, workers, len(source), batch_size)

    def read_and_encode(samples: Iterator[Sample], keys: Sequence[int]) -> Result | None:
        first = next(samples, None)
        return None if first is None else encode(make(itertools.chain([first], samples), keys))

    if processes:
        yield from Loader(source, read_and_encode, order, workers=processes)
        return
    for loaded in Loader(source, make, order, workers=helpers(workers, len(source))):
        made = encode(loaded.made) if loaded.keys else None
        yield Loaded(made, loaded.places, loaded.keys, loaded.bad, loaded.seen)


def helpers(workers: Workers, images: int) -> int:
    """The number of reading processes: by default none if reading takes less time than starting them."""
    if workers != "auto":
        return workers
    return cores() // 2 if images > _WORTH_HELPERS else 0


def encoding_processes(encoder: Encoder, workers: Workers, images: int, batch_size: int) -> int:
    """The number of processes that read and encode; 0 if this process should encode.

    They are copies of this process, because encoders and functions cannot always be sent. Only the main thread makes
    them: while another one works, a lock that it holds would stay locked in the copies.
    """
    count = min(cores(), torch.get_num_threads(), images // (_SHARE * batch_size))
    if workers != "auto" or count < 2 or images < _WORTH_COPIES or world_size() > 1:
        return 0
    parameters = list(encoder.backbone.parameters())
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
    small = sum(parameter.numel() for parameter in parameters) <= _SMALL
    return count if on_cpu and small and _can_copy() else 0


def _can_copy() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and not multiprocessing.current_process().daemon and multiprocessing.get_start_method() == "fork"
