"""A cache of decoded images in memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from asterism.data.sources.source import Sample, Source


class KeptImages:
    """The images of a source by number; the first ones decoded stay in memory, up to `megabytes`.

    A cached image is never evicted: in shuffled passes every image is requested equally often, so no other choice would
    save more decoding. Of the masks, only pixel classes are kept, one byte each. Each process that makes views has its
    own cache.
    """

    def __init__(self, source: Source, megabytes: float) -> None:
        self._source = source
        self._kept: dict[int, Sample] = {}
        self._bytes_left = round(megabytes * 2**20)

    def __getitem__(self, index: int) -> Sample:
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        sample = self._source[index]
        return self._keep(index, sample) if self._bytes_left > 0 else sample

    def _keep(self, index: int, sample: Sample) -> Sample:
        semantic = None if sample.semantic is None else sample.semantic.to(torch.uint8)
        kept = replace(sample, semantic=semantic, instances=None, boxes=None)
        needed = kept.image.nbytes + (0 if semantic is None else semantic.nbytes)
        if needed <= self._bytes_left:
            self._kept[index] = kept
            self._bytes_left -= needed
        return kept
