import pickle

from asterism.data import Source, Subset
from tests.data.sample_sources import Numbered


def test_a_subset_is_a_source() -> None:
    subset = Subset(Numbered(10), [7, 2, 2])
    assert isinstance(subset, Source)
    assert (len(subset), subset.name, subset.classes) == (3, "numbered", ["even", "odd"])
    assert [subset[i].key for i in range(3)] == ["7", "2", "2"]
    assert [subset.label(i) for i in range(3)] == [1, 0, 0]
    assert pickle.loads(pickle.dumps(subset))[0].key == "7"


def test_the_fingerprint_depends_on_the_indices() -> None:
    source = Numbered(10)
    prints = {Subset(source, chosen).fingerprint for chosen in ([1, 2], [2, 1], [1], range(10))}
    assert len(prints) == 4
    assert Subset(source, range(1, 3)).fingerprint == Subset(source, [1, 2]).fingerprint
