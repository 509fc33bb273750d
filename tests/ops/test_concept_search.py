import torch
from torch.nn import functional as F

from asterism.ops.concept_search import Matches, merge, nearest_by_concept, no_matches

G = torch.Generator().manual_seed(0)
QUERIES, BANK = torch.randn(3, 6, generator=G), torch.randn(10, 4, 6, generator=G)


def by_loops(query: torch.Tensor, without: set[int]) -> list[tuple[float, int, int]]:
    found = []
    for image in set(range(10)) - without:
        cosines = [float(F.cosine_similarity(query, BANK[image, token], dim=0)) for token in range(4)]
        best = max(range(4), key=cosines.__getitem__)
        found.append((cosines[best], image, best))
    return sorted(found, reverse=True)


def check(ours: Matches, k: int, barred: list[set[int]]) -> None:
    for q in range(3):
        expected = by_loops(QUERIES[q], barred[q])[:k]
        assert ours.image[q].tolist() == [image for _, image, _ in expected]
        assert ours.token[q].tolist() == [token for _, _, token in expected]
        torch.testing.assert_close(ours.similarity[q], torch.tensor([s for s, _, _ in expected]))


def test_every_image_is_found_once_by_its_nearest_concept() -> None:
    check(nearest_by_concept(QUERIES, BANK, 5), 5, [set(), set(), set()])


def test_barred_images_are_not_found() -> None:
    barred = [{int(nearest_by_concept(QUERIES, BANK, 1).image[q, 0])} for q in range(3)]
    mask = torch.tensor([[image in group for image in range(10)] for group in barred])
    check(nearest_by_concept(QUERIES, BANK, 5, mask), 5, barred)


def test_searching_parts_equals_searching_the_whole() -> None:
    best = no_matches(3)
    for first in range(0, 10, 4):
        best = merge(best, nearest_by_concept(QUERIES, BANK[first : first + 4], 5), first, 5)
    check(best, 5, [set(), set(), set()])
