from pathlib import Path

import pytest

from asterism.data import open_source
from asterism.data.parts import DataChoice, labels_of
from asterism.errors import UserError
from asterism.evals.few_labels import FewLabelsConfig, labelled_part, listed_places
from asterism.evals.linear import Linear, LinearConfig
from asterism.nn.pixel_baseline import pixel_encoder
from tests.evals.samples import write_colours


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_colours(tmp_path / "train", 10)
    write_colours(tmp_path / "test", 2, seed=1)
    return tmp_path


def _list(folder: Path, *names: str) -> Path:
    file = folder / "few.txt"
    file.write_text("\n".join(names) + "\n\n")
    return file


def test_a_share_is_reproducible_and_balanced(folder: Path) -> None:
    source = open_source(str(folder), "train")
    parts = [labelled_part(source, FewLabelsConfig(label_share=0.2)) for _ in range(2)]
    assert parts[0].fingerprint == parts[1].fingerprint
    assert labels_of(parts[0]) == [0, 0, 1, 1, 2, 2]
    assert labelled_part(source, FewLabelsConfig(label_share=0.2, seed=1)).fingerprint != parts[0].fingerprint
    assert labels_of(labelled_part(source, FewLabelsConfig(label_share=0.01))) == [0, 1, 2], "one of every class"


def test_lists_name_images_with_or_without_folders_and_extensions(folder: Path) -> None:
    source = open_source(str(folder), "train")
    file = _list(folder, "red/003.png", "train/blue/001.png", "green/000", "red/003.png")
    assert listed_places(file, source) == [1, 10, 23]
    evaluation = Linear(
        LinearConfig(label_list=str(file), learning_rates=(0.1,), epochs=1),
        Linear.open_parts(LinearConfig(), _data(folder)),
    )
    assert len(evaluation.parts.train) == 3
    assert evaluation.constants(pixel_encoder())["label_list"] == str(file)


def _data(folder: Path) -> DataChoice:
    return DataChoice(str(folder))


def test_lists_that_do_not_match_are_rejected(folder: Path) -> None:
    source = open_source(str(folder), "train")
    with pytest.raises(UserError, match=r"1 of the 2 names in .*few.txt are not among .*'red/999.png'"):
        listed_places(_list(folder, "red/001.png", "red/999.png"), source)
    with pytest.raises(UserError, match=r"'003.png' in .* matches several images .* add their folders"):
        listed_places(_list(folder, "003.png"), source)
    with pytest.raises(UserError, match="is empty"):
        listed_places(_list(folder), source)
    with pytest.raises(UserError, match=r"cannot read .*no.txt"):
        listed_places(folder / "no.txt", source)
    with pytest.raises(UserError, match="label_share or label_list, not both"):
        LinearConfig.parse({"label_share": 0.1, "label_list": "a.txt"})
