from asterism.data import Subset
from tests.data.sample_sources import Numbered


def test_the_fingerprint_depends_on_the_indices() -> None:
    source = Numbered(10)
    prints = {Subset(source, chosen).fingerprint for chosen in ([1, 2], [2, 1], [1], range(10))}
    assert len(prints) == 4
    assert Subset(source, range(1, 3)).fingerprint == Subset(source, [1, 2]).fingerprint
