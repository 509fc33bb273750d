from pathlib import Path

import pytest

from asterism.data import Source, open_source
from asterism.data.sources.folder import Folder
from asterism.data.sources.scenes import Scenes
from asterism.errors import UserError
from tests.data.pictures import encoded, write


def test_a_folder_by_any_form_of_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "photos" / "a.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (tmp_path / "photos", str(tmp_path / "photos"), "photos", "photos/", "./photos", "~/photos"):
        source = open_source(path)
        assert isinstance(source, Folder)
        assert isinstance(source, Source)
        assert (source.name, len(source)) == ("photos", 1)


def test_scenes() -> None:
    source = open_source("scenes:size=32,count=20,seed=3", "test")
    assert isinstance(source, Scenes)
    assert (len(source), source.split) == (20, "test")
    assert source[0].image.shape == (3, 32, 32)
    assert open_source("scenes").fingerprint == Scenes().fingerprint
    with pytest.raises(UserError, match="did you mean 'count'"):
        open_source("scenes:counts=3")
    with pytest.raises(UserError, match="whole number"):
        open_source("scenes:count=many")


def test_a_folder_takes_precedence_over_a_data_set_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "scenes" / "a.png")
    assert isinstance(open_source("scenes"), Folder)
    assert isinstance(open_source("scenes:"), Scenes)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("cifar11", "did you mean 'cifar10'"),
        ("cene", "did you mean 'scenes'"),
        ("foto", "did you mean .*'fotos'"),
        ("nothing/like/this", "no such file or folder: nothing/like/this"),
        ("fotoz/", "no such file or folder|did you mean"),
        ("./foto", "did you mean fotos"),
        ("missing.tar", "no such file"),
        ("photo.png", "is a file; name a folder"),
        ("images.zip", "compressed"),
        ("images.tar.gz", "compressed"),
        ("empty", "no images in empty: the folder is empty"),
        ("scans", r"no images in scans.*x\.dcm"),
    ],
)
def test_what_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fotos").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "x.dcm").touch()
    (tmp_path / "photo.png").write_bytes(encoded(0))
    (tmp_path / "images.zip").touch()
    (tmp_path / "images.tar.gz").touch()
    with pytest.raises(UserError, match=message):
        open_source(path)


def test_real_data(real_data: Path) -> None:
    labelled = {"cifar10": 10_000, "tinyimagenet20": 1000}
    for name, count in labelled.items():
        source = open_source(real_data / name, "test", labels=True)
        assert len(source) == count
        assert source[0].label == source.label(0)
    assert len(open_source(real_data / "coco128")) == 128
    assert len(open_source(real_data / "davis")) == 400
