import torch
from torch.nn import functional as F

from asterism.nn.tokenizers.codebook import Codebook


def _book() -> Codebook:
    torch.manual_seed(0)
    return Codebook(5, 3)


def _latents(rows: int, seed: int = 1) -> torch.Tensor:
    return F.normalize(torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_codes_are_running_means_of_their_latents() -> None:
    book, latents = _book(), _latents(20)
    before = book.codes.clone()
    chosen = book.nearest(latents)
    book.accumulate(latents[:7], chosen[:7], torch.arange(7))
    book.accumulate(latents[7:], chosen[7:], torch.arange(7, 20))
    book.update(momentum=0.9, revive_below=0.0)
    for k in range(5):
        mine = latents[chosen == k]
        total = 0.9 * before[k] + 0.1 * mine.sum(dim=0)
        torch.testing.assert_close(book.codes[k], total / total.norm())
        torch.testing.assert_close(book.count[k], torch.tensor(0.9 + 0.1 * len(mine)))


def test_unused_codes_become_the_latents_with_the_smallest_keys() -> None:
    book, latents = _book(), _latents(4)
    book.accumulate(latents, torch.zeros(4, dtype=torch.int64), torch.tensor([30, 10, 20, 40]))
    book.update(momentum=0.5, revive_below=0.9)  # only code 0 was used
    torch.testing.assert_close(book.codes[1:], latents[[1, 2, 0, 3]])


def test_an_update_clears_its_micro_batches() -> None:
    book = _book()
    latents = _latents(4)
    book.accumulate(latents, book.nearest(latents), torch.arange(4))
    book.update(0.5, 0.0)
    count = book.count.clone()
    book.update(0.5, 0.0)
    torch.testing.assert_close(book.count, count / 2)
