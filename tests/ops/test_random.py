import torch

from asterism.ops.random import fold, fold_each, fold_series, generator, uniform


def test_fold_of_an_integer_equals_fold_of_a_tensor():
    keys = [0, 1, -5, 2**62]
    assert fold_each(torch.tensor(keys), 3, 7).tolist() == [fold(key, 3, 7) for key in keys]


def test_a_series_is_the_fold_of_consecutive_integers():
    keys = [0, 1, -5, 2**62]
    assert fold_series(torch.tensor(keys), 3, first=5).tolist() == [[fold(key, n) for n in (5, 6, 7)] for key in keys]


def test_fold_depends_on_order_and_on_every_value():
    seen = {fold(0, a, b) for a in range(40) for b in range(40)} | {fold(0, a) for a in range(40)}
    assert len(seen) == 40 * 40 + 40


def test_draws_do_not_depend_on_the_batch():
    keys = torch.tensor([fold(0, i) for i in range(8)])
    torch.testing.assert_close(uniform(keys, 5)[3:4], uniform(keys[3:4], 5), rtol=0, atol=0)
    torch.testing.assert_close(uniform(keys, 9)[:, :5], uniform(keys, 5), rtol=0, atol=0)


def test_uniform_is_uniform_along_both_axes():
    draws = uniform(torch.tensor([fold(1, i) for i in range(400)]), 500)
    assert draws.min() >= 0
    assert draws.max() < 1
    histogram = torch.histc(draws, 100, 0, 1)
    expected = draws.numel() / 100
    # χ² with 99 degrees of freedom: mean 99, standard deviation 14
    assert ((histogram - expected) ** 2 / expected).sum() < 99 + 5 * 14
    rows, columns = draws.mean(1), draws.mean(0)
    assert (rows.std() - (1 / 12 / 500) ** 0.5).abs() < 0.2 * (1 / 12 / 500) ** 0.5
    assert (columns.std() - (1 / 12 / 400) ** 0.5).abs() < 0.2 * (1 / 12 / 400) ** 0.5
    neighbours = torch.corrcoef(torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()]))[0, 1]
    assert neighbours.abs() < 0.01


def test_generator_is_a_function_of_its_key():
    first = torch.randperm(50, generator=generator(fold(0, 1)))
    assert torch.equal(first, torch.randperm(50, generator=generator(fold(0, 1))))
    assert not torch.equal(first, torch.randperm(50, generator=generator(fold(0, 2))))
