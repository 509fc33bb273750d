import torch

from asterism.data.order import EpochOrder
from asterism.ops.random import fold, generator


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    order = EpochOrder(images=50, batch_size=7, seed=5)
    for step in (0, 6, 7, 13, 700, 3):
        epoch = step // 7
        expected = torch.randperm(50, generator=generator(fold(5, epoch)))[(step % 7) * 7 :][:7]
        assert order.epoch(step) == epoch
        assert torch.equal(order.batch(step), expected)
    assert not torch.equal(order.batch(0), EpochOrder(images=50, batch_size=7, seed=6).batch(0))
    assert not torch.equal(order.batch(0), order.batch(7))


def test_without_shuffling() -> None:
    order = EpochOrder(images=10, batch_size=4, seed=0, shuffle=False)
    assert [order.batch(step).tolist() for step in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
