from collections import deque

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.object_bank import BankConfig, ObjectBank, StoredObjects
from asterism.ops.cycle_consistency import closes_cycle


def _objects(first: int, count: int, seed: int = 0) -> StoredObjects:
    """Images numbered from `first` with three slots each, some empty; keys decrease as the numbers increase."""
    g = torch.Generator().manual_seed(seed + first)
    image = torch.arange(first, first + count)
    rows, valid = torch.randn(count, 3, 2, 5, generator=g), torch.rand(count, 3, generator=g) < 0.7
    return StoredObjects(rows, valid, 10 * image[:, None] + torch.arange(3), image, keys=-image)


def test_keeps_the_newest_images_like_a_bounded_list() -> None:
    bank, slow, seen = (
        ObjectBank(BankConfig(images=7, precision="full"), 3, 5),
        deque[tuple[int, Tensor, Tensor]](maxlen=7),
        0,
    )
    for count in [3, 3, 3, 1, 7, 0, 6, 2]:
        new = _objects(seen, count)
        bank.push(new)
        for i in reversed(range(count)):
            slow.appendleft((seen + i, new.rows[i], new.valid[i]))
        seen += count
        order = (bank.newest + torch.arange(7)) % 7
        assert bank.image[order][: len(slow)].tolist() == [image for image, _, _ in slow]
        for place, (_, rows, valid) in zip(order.tolist(), slow, strict=False):
            assert bank.rows[:, place].equal(rows.transpose(0, 1))
            assert bank.valid[place].equal(valid)
            assert (bank.meaning[place] // 10 == bank.image[place]).all()
        assert bank.filled_share == len(slow) / 7


def test_search_reads_valid_slots_of_other_images() -> None:
    bank = ObjectBank(BankConfig(images=6), 3, 5)
    stored = _objects(0, 4)
    bank.push(stored)
    queries, image = stored.rows[:, :2].flatten(0, 1).transpose(0, 1), torch.arange(4).repeat_interleave(2)
    found = bank.nearest(queries, image)
    for view in range(2):
        for query, number, slot in zip(queries[view], image.tolist(), found[view].tolist(), strict=True):
            allowed = [
                (i, k) for i in range(6) for k in range(3) if bank.valid[i, k] and bank.image[i] not in (-1, number)
            ]
            best = max(allowed, key=lambda s: float(torch.cosine_similarity(query, bank.rows[view][s].float(), 0)))
            assert divmod(slot, 3) == best
    free = ObjectBank(BankConfig(images=6, own_image="allowed"), 3, 5)
    free.push(stored)
    assert free.nearest(queries, image).equal(bank.nearest(queries, torch.full_like(image, 99)))
    assert (free.nearest(queries, image) != found).any(), "without the rule objects find themselves"


def test_micro_batches_enter_together_in_the_order_of_their_keys() -> None:
    bank = ObjectBank(BankConfig(images=10), 3, 5)
    bank.collect(_objects(0, 2))
    bank.collect(_objects(2, 3))
    assert bank.filled_share == 0
    bank.store()
    order = (bank.newest + torch.arange(10)) % 10
    assert bank.image[order][:5].tolist() == [4, 3, 2, 1, 0]


def test_an_empty_bank_has_no_neighbours() -> None:
    bank = ObjectBank(BankConfig(images=6), 3, 5)
    found = bank.nearest(torch.randn(2, 4, 5), torch.arange(4))
    assert found.tolist() == [[-1] * 4] * 2
    assert not closes_cycle(found, torch.randn(2, 4, 5), bank.rows.flatten(1, 2)).any()
    assert bank.nearest(torch.zeros(2, 0, 5), torch.arange(0)).shape == (2, 0)


def test_a_bank_smaller_than_a_batch_is_refused() -> None:
    bank = ObjectBank(BankConfig(images=4), 3, 5)
    bank.collect(_objects(0, 3))
    with pytest.raises(UserError, match=r"bank.images = 4 is smaller than a batch of 6"):
        bank.collect(_objects(3, 3))
