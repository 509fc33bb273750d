"""Exact nearest neighbours in a memory that changes a little at every step, without a full search each time.

Every row has a list of all rows whose similarity to it is above the list's floor. When rows are replaced, the old ones
are removed from the lists; the new ones are compared with every row once, join the lists whose floor they exceed and
get their own lists. A list that overflows drops its least similar rows and raises its floor to the best of them. So as
long as enough rows of a list are allowed, the nearest of them are exactly the nearest of the whole memory; otherwise
the whole memory is searched, which also refills the list.

With b new rows per step, T tasks of K anchors each and n rows in the memory, this takes b·n comparisons instead of
T·K·n.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from asterism.ops.neighbours import nearest_rows

_COMPARED = 1 << 22  # similarities between new rows and rows of the memory that are computed at a time


class NeighbourLists(nn.Module):
    """Lists of at most `length` neighbours for each of `size` rows, initially empty and filled on demand.

    A query writes to the lists, even in the middle of a step, but its answer depends on the memory alone: the lists
    are a cache, and micro-batches or a restart do not change results.
    """

    index: Int[Tensor, "n m"]
    similarity: Float[Tensor, "n m"]  # −∞ where a list has no entry; unordered
    floor: Float[Tensor, " n"]  # every row more similar than this is listed; +∞: nothing is known

    def __init__(self, size: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.register_buffer("index", torch.zeros(size, length, dtype=torch.int64))
        self.register_buffer("similarity", torch.full((size, length), -torch.inf))
        self.register_buffer("floor", torch.full((size,), torch.inf))

    @torch.no_grad()
    def forward(
        self,
        memory: Float[Tensor, "n d"],
        anchors: Int[Tensor, " k"],
        count: int,
        excluded: Int[Tensor, " x"] | None = None,
    ) -> tuple[Float[Tensor, "k {count}"], Int[Tensor, "k {count}"]]:
        """The same as `ops.neighbours.nearest_rows`."""
        assert count <= self.length, "a list must be at least as long as the requested count"
        banned = torch.zeros(len(memory), dtype=torch.bool, device=memory.device)
        if excluded is not None:
            banned[excluded] = True
        similarity, index = self._listed(anchors, count, banned)
        short = _short(similarity)
        if len(short):
            self._search(memory, anchors[short])
            similarity[short], index[short] = self._listed(anchors[short], count, banned)
            short = _short(similarity)  # even a fresh list may have lost too many rows to `excluded`
            similarity[short], index[short] = nearest_rows(memory, anchors[short], count, excluded)
        return similarity, index

    @torch.no_grad()
    def follow(self, memory: Float[Tensor, "n d"], places: Int[Tensor, " b"]) -> None:
        """Update the lists after the rows at `places` were replaced."""
        replaced = torch.zeros(len(memory), dtype=torch.bool, device=memory.device)
        replaced[places] = True
        self.similarity.masked_fill_(replaced[self.index], -torch.inf)
        self.floor[places] = torch.inf
        new, best, best_index = memory[places], [], []
        tile = max(1, _COMPARED // max(1, len(places)))
        with torch.autocast(memory.device.type, enabled=False):
            for start in range(0, len(memory), tile):
                similarity = new @ memory[start : start + tile].T
                self._join(similarity.T.contiguous(), places, start)
                values, order = similarity.topk(min(self.length + 1, similarity.shape[1]))
                best.append(values)
                best_index.append(order + start)
        self._replace(places, torch.cat(best, 1), torch.cat(best_index, 1))

    def _listed(
        self, anchors: Int[Tensor, " k"], count: int, banned: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, "k {count}"], Int[Tensor, "k {count}"]]:
        index = self.index[anchors]
        similarity, order = self.similarity[anchors].masked_fill(banned[index], -torch.inf).topk(count, dim=1)
        return similarity, index.gather(1, order)

    def _join(self, similarity: Float[Tensor, "t b"], places: Int[Tensor, " b"], start: int) -> None:
        """Add new rows to the lists, of rows from `start` on, whose floor they exceed."""
        floor = self.floor[start : start + len(similarity)]
        owner, which = (similarity > floor[:, None]).nonzero().unbind(dim=1)
        if len(owner) == 0:
            return
        lists, counts = torch.unique_consecutive(owner, return_counts=True)
        line = torch.arange(len(lists), device=owner.device).repeat_interleave(counts)
        slot = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[line]
        more = similarity.new_full((len(lists), int(counts.max())), -torch.inf)
        more_index = places.new_zeros(more.shape)
        more[line, slot], more_index[line, slot] = similarity[owner, which], places[which]
        lists = lists + start
        entries = torch.cat([self.similarity[lists], more], 1), torch.cat([self.index[lists], more_index], 1)
        self._keep_best(lists, *entries)

    def _search(self, memory: Float[Tensor, "n d"], rows: Int[Tensor, " b"]) -> None:
        self._replace(rows, *nearest_rows(memory, rows, min(self.length + 1, len(memory))))

    def _replace(self, lists: Int[Tensor, " l"], similarity: Float[Tensor, "l c"], index: Int[Tensor, "l c"]) -> None:
        """Replace lists by entries that contain the `length + 1` most similar rows."""
        self.floor[lists] = -torch.inf
        self._keep_best(lists, similarity, index)

    def _keep_best(self, lists: Int[Tensor, " l"], similarity: Float[Tensor, "l c"], index: Int[Tensor, "l c"]) -> None:
        """Keep as many entries as a list holds; the floor rises to the best one dropped."""
        excess = similarity.shape[1] - self.length
        if excess <= 0:
            similarity = nn.functional.pad(similarity, (0, -excess), value=-torch.inf)
            index = nn.functional.pad(index, (0, -excess))
        else:
            similarity, order = similarity.topk(self.length + 1, dim=1)
            index = index.gather(1, order)
            self.floor[lists] = torch.maximum(self.floor[lists], similarity[:, -1])
        self.similarity[lists], self.index[lists] = similarity[:, : self.length], index[:, : self.length]


def _short(similarity: Float[Tensor, "k c"]) -> Int[Tensor, " s"]:
    """Rows whose lists had too few allowed entries."""
    return similarity.isneginf().any(dim=1).nonzero().squeeze(1)
