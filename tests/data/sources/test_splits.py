import pytest

from asterism.data.sources.splits import UnknownSplit, divided, part, pick


@pytest.mark.parametrize(
    ("split", "available", "expected"),
    [
        (None, ["test", "train", "val"], "train"),
        ("train", ["Training", "Test"], "Training"),
        ("val", ["train", "valid", "test"], "valid"),
        ("validation", ["train", "val"], "val"),
        ("val", ["train", "test"], "test"),
        ("test", ["train", "val"], "val"),
        ("test", ["val", "test", "train"], "test"),
        ("dev", ["TEST", "train"], "TEST"),
        ("extra", ["train", "extra"], "extra"),
    ],
)
def test_matching_of_split_names(split: str | None, available: list[str], expected: str) -> None:
    assert pick(split, available, "somewhere") == expected


@pytest.mark.parametrize(("split", "available"), [("train", ["test"]), ("extra", ["train", "test"]), (None, ["test"])])
def test_a_missing_part(split: str | None, available: list[str]) -> None:
    with pytest.raises(UnknownSplit) as caught:
        pick(split, available, "photos")
    assert "photos" in str(caught.value)
    assert all(name in str(caught.value) for name in available)
    assert split is None or split in str(caught.value)


def test_no_parts_at_all() -> None:
    with pytest.raises(UnknownSplit, match="leave the split out"):
        pick("val", [], "photos")


def test_what_counts_as_divided() -> None:
    assert divided(["train", "val"])
    assert divided(["Training", "other", "TEST"])
    assert not divided(["train", "other"])
    assert not divided(["val", "test"])
    assert part("trainset") is None
