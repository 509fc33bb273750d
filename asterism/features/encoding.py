"""Encoding the images of a source with every core.

By default worker processes read images, and this process encodes them. On a CPU, the threads that share the work on a
small matrix synchronise after every operation. There, each worker encodes what it reads, with one thread, and this
process stores what they send (`lab/benchmarks/encoding.py`).
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import torch

from asterism.data import EvaluationBatch, Source, Subset
from asterism.data.evaluation.batches import CenterCrops
from asterism.data.reading import Entry, read_batches
from asterism.data.workers import cores
from asterism.features.rows import Block
from asterism.nn.encoder import Encoder
from asterism.ops.collectives import world_size
from asterism.ops.kept_memory import kept_memory
from asterism.ranges import FewFromZero
from asterism.viz.bar import Bar

_WORTH_HELPERS, _WORTH_COPIES = 2000, 200  # images
_SHARE = 4  # batches for each process that encodes, at least: else some wait for the last
_SMALL = 30_000_000  # parameters up to which processes are faster than threads: a ViT-S, but not a ViT-B

Workers = FewFromZero | Literal["auto"]
Batch = TypeVar("Batch")
Result = TypeVar("Result")


def encoded(
    encoder: Encoder,
    source: Source,
    make: Callable[[Iterator[Entry]], Batch],
    encode: Callable[[Batch], Result],
    *,
    batch_size: int,
    workers: Workers = "auto",
) -> Iterator[Result]:
    """`encode` of every batch of a source, in order. It must depend on nothing but the batch.

    make: turns images into a batch. workers: processes that read; auto: as many as help, which may encode as well.
    """
    processes = encoding_processes(encoder, workers, len(source), batch_size)
    with kept_memory(next(encoder.parameters()).device):
        if processes:
            yield from read_batches(
                source, lambda entries: encode(make(entries)), batch_size=batch_size, workers=processes
            )
        else:
            readers = helpers(workers, len(source))
            yield from map(encode, read_batches(source, make, batch_size=batch_size, workers=readers))


def encoded_blocks(
    encoder: Encoder,
    source: Source,
    images: range,
    make: Callable[[Source], Callable[[Iterator[Entry]], Batch]],
    blocks: Callable[[Batch], list[Block]],
    *,
    batch_size: int,
    workers: Workers,
) -> Iterator[Block]:
    """The blocks of consecutive images for the feature cache, with a progress bar.

    make: for the part of the source with these images, what turns them into a batch. blocks: encodes a batch.
    """
    part = source if images == range(len(source)) else Subset(source, images)
    with Bar(source.name, images.stop, images.start) as bar:
        for found in encoded(encoder, part, make(part), blocks, batch_size=batch_size, workers=workers):
            for block in found:
                yield block
                bar.advance(len(block.keys) + len(block.unreadable))


def cropped_blocks(
    encoder: Encoder,
    source: Source,
    images: range,
    resize: int,
    block: Callable[[EvaluationBatch], Block],
    *,
    batch_size: int,
    workers: Workers,
) -> Iterator[Block]:
    """`encoded_blocks` of centre crops at the encoder's image size, after their shorter side is resized to `resize`."""
    return encoded_blocks(
        encoder,
        source,
        images,
        lambda part: CenterCrops(part, encoder.image_size, resize),
        lambda batch: [block(batch)],
        batch_size=batch_size,
        workers=workers,
    )


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
