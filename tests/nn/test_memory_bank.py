import torch
from torch import Tensor

from asterism.nn.memory_bank import Memory
from asterism.ops.random import generator


def rows(start: int, count: int) -> Tensor:
    """Recognisable rows: row i is (i, i)."""
    return torch.arange(start, start + count, dtype=torch.float32)[:, None].expand(-1, 2)


def test_batches_of_any_size_equal_a_bounded_list() -> None:
    memory, slow, pointer, seen = Memory(7, 2), Memory(7, 2).rows, 0, 0
    slow = memory.rows.clone()
    for count in [3, 3, 3, 1, 7, 0, 6, 20, 2, 14]:
        batch = rows(seen, count)
        memory.push(batch)
        for row in batch:
            slow[pointer] = row
            pointer = (pointer + 1) % 7
        seen += count
        assert torch.equal(memory.rows, slow)
        assert int(memory.pointer) == pointer
        assert int(memory.filled) == min(7, seen)


def test_micro_batches_enter_together_in_the_order_of_their_keys() -> None:
    memory = Memory(10, 2)
    before = memory.rows.clone()
    memory.collect(rows(0, 2), torch.tensor([30, -5]))
    memory.collect(rows(2, 3), torch.tensor([7, 50, 1]))
    assert torch.equal(memory.rows, before)
    memory.store()
    assert memory.rows[:5, 0].tolist() == [1, 4, 2, 0, 3]


def test_samples_without_replacement_from_the_generator() -> None:
    memory = Memory(20, 2)
    first, again, other = (memory.sample(15, generator(key)) for key in (1, 1, 2))
    assert first.unique().numel() == 15
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    counts = torch.stack([memory.sample(5, generator(key)) for key in range(2000)]).flatten().bincount(minlength=20)
    assert (counts - 500).abs().max() < 5 * (2000 * 0.25 * 0.75) ** 0.5
