import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops import neighbours
from asterism.ops.neighbours import (
    Matches,
    merge_matches,
    most_similar_row,
    nearest,
    nearest_by_concept,
    nearest_in_parts,
    nearest_rows,
    no_matches,
    reciprocal_lengths,
)
from asterism.ops.random import generator


def gaussian(key: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(key))


@pytest.fixture(params=["one tile", "small tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small tiles":
        for name, size in {"_QUERIES": 4, "_BANK": 9, "_ROWS": 5, "_MEMORY": 7}.items():
            monkeypatch.setattr(neighbours, name, size)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("k", [1, 12, 50])
def test_the_nearest_rows_by_cosine(k: int) -> None:
    queries, bank = gaussian(1, 23, 6), gaussian(2, 50, 6)
    cosine = F.cosine_similarity(queries[:, None], bank[None], dim=-1)
    similarity, index = nearest(queries, bank, k)
    torch.testing.assert_close(similarity, cosine.sort(descending=True).values[:, :k])
    assert index.equal(cosine.argsort(descending=True)[:, :k])


@pytest.mark.usefixtures("tiles")
def test_parts_are_searched_like_separate_banks() -> None:
    queries, bank = gaussian(1, 11, 6), gaussian(2, 40, 6)
    parts = [[range(40)], [range(2, 5), range(17, 31)], [range(38, 40)]]
    for runs, (similarity, index) in zip(parts, nearest_in_parts(queries, bank, parts, 7), strict=True):
        rows = torch.tensor([row for run in runs for row in run])
        expected, place = nearest(queries, bank[rows], min(7, len(rows)))
        torch.testing.assert_close(similarity, expected)
        assert index.equal(rows[place])


@pytest.mark.usefixtures("tiles")
def test_rows_of_a_memory_without_the_excluded_ones() -> None:
    memory, anchors, excluded = (
        F.normalize(gaussian(1, 30, 6), dim=1),
        torch.tensor([3, 8, 20]),
        torch.tensor([3, 4, 8]),
    )
    similarity, index = nearest_rows(memory, anchors, 5, excluded)
    allowed = [row for row in range(30) if row not in excluded]
    for anchor, values, rows in zip(anchors.tolist(), similarity, index.tolist(), strict=True):
        ranked = sorted(allowed, key=lambda row: -float(memory[anchor] @ memory[row]))
        assert rows == ranked[:5]
        torch.testing.assert_close(values, memory[rows] @ memory[anchor])


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("rows", [1, 5, 23])
def test_the_most_similar_row(rows: int) -> None:
    queries, stored = gaussian(1, 10, 6), gaussian(2, rows, 6) * torch.arange(1, rows + 1)[:, None]
    expected = [max(range(rows), key=lambda j: float(query @ stored[j] / stored[j].norm())) for query in queries]
    assert most_similar_row(queries, stored).tolist() == expected
    assert most_similar_row(queries, stored, reciprocal_length=reciprocal_lengths(stored)).tolist() == expected


@pytest.mark.usefixtures("tiles")
def test_only_allowed_rows_of_other_groups() -> None:
    queries, stored = gaussian(1, 9, 6), gaussian(2, 23, 6)
    among = torch.tensor([2, 3, 5, 7, 11, 13, 17, 19])
    query_group, row_group = torch.arange(9) % 3, torch.arange(23) % 4
    allowed = torch.zeros(23, dtype=torch.bool).index_fill(0, among, True)
    found = most_similar_row(queries, stored, among=allowed, query_group=query_group, row_group=row_group)
    unit = F.normalize(stored, dim=1)
    for i, query in enumerate(queries):
        others = [j for j in among.tolist() if row_group[j] != query_group[i]]
        assert found[i] == max(others, key=lambda j: float(query @ unit[j]))


def test_nothing_to_choose_from() -> None:
    queries, stored = gaussian(1, 3, 6), gaussian(2, 2, 6)
    none = torch.zeros(2, dtype=torch.bool)
    assert most_similar_row(queries, stored, among=none).tolist() == [-1, -1, -1]
    group = torch.zeros(3, dtype=torch.int64)
    assert most_similar_row(queries, stored, query_group=group, row_group=group[:2]).tolist() == [-1, -1, -1]
    assert most_similar_row(queries[:0], stored).tolist() == []


def test_half_precision_rows_are_compared_in_single_precision() -> None:
    stored = (gaussian(2, 23, 64) * 30).half()
    queries = stored.float() + 0.01
    assert most_similar_row(queries, stored).equal(torch.arange(23))
    with torch.autocast("cpu", torch.bfloat16):
        assert most_similar_row(queries, stored).equal(torch.arange(23))


QUERIES, BANK = gaussian(1, 3, 6), gaussian(2, 10, 4, 6)


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
        best = merge_matches(best, nearest_by_concept(QUERIES, BANK[first : first + 4], 5), first, 5)
    check(best, 5, [set(), set(), set()])
