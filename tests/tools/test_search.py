import shutil
from pathlib import Path

import pytest
from PIL import Image

from asterism import api
from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.nn.pixel_baseline import pixel_encoder
from tests.evals.samples import small_encoder, write_colours


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_colours(tmp_path / "photos", 4, size=(16, 16))


def _index(photos: Path, suffix: str = ".parquet", encoder: Encoder | None = None) -> Path:
    return api.embed(encoder or pixel_encoder(), photos, photos.parent / f"index{suffix}", overwrite=True).path


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
@pytest.mark.parametrize("sheet", ["sheet.html", "sheet.png"])
def test_an_image_finds_itself_and_similar_images(photos: Path, suffix: str, sheet: str, tmp_path: Path) -> None:
    query = photos / "green" / "002.png"
    found = api.search(pixel_encoder(), _index(photos, suffix), query, tmp_path / sheet, count=4)[query]
    assert found[0].key == "green/002.png"
    assert found[0].similarity == pytest.approx(1, abs=1e-3)
    assert {neighbour.key.partition("/")[0] for neighbour in found} == {"green"}
    if sheet.endswith("png"):
        with Image.open(tmp_path / sheet) as image:
            assert image.width > 5 * 180
    else:
        text = (tmp_path / sheet).read_text()
        assert text.count("<img") == 5
        assert "green/002.png" in text


def test_a_collection_that_moved_and_an_unreadable_image(photos: Path, tmp_path: Path) -> None:
    (photos / "blue" / "001.png").write_bytes(b"no image")
    index = _index(photos)
    shutil.move(photos, tmp_path / "elsewhere")
    query = tmp_path / "elsewhere/red/000.png"
    with pytest.raises(UserError, match="photos"):
        api.search(pixel_encoder(), index, query, tmp_path / "s.png")
    found = api.search(pixel_encoder(), index, [query], tmp_path / "s.png", data=tmp_path / "elsewhere", count=50)
    assert len(found[query]) == 11


def test_a_second_search_keeps_the_sheet_of_the_first(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = _index(photos)
    monkeypatch.chdir(tmp_path)
    found = [api.search(pixel_encoder(), index, photos / "red/000.png") for _ in range(3)]
    assert [each.sheet.name for each in found] == ["neighbours.html", "neighbours-2.html", "neighbours-3.html"]
    assert api.search(pixel_encoder(), index, photos / "red/000.png", overwrite=True).sheet.name == "neighbours.html"


def test_mistakes_are_named(photos: Path, tmp_path: Path) -> None:
    index, query, out = _index(photos, encoder=small_encoder(seed=1)), photos / "red/000.png", tmp_path / "s.html"
    with pytest.raises(UserError, match=r"index.parquet was made by another model \(Encoder\)"):
        api.search(pixel_encoder(), index, query, out)
    with pytest.raises(UserError, match="was made by another model"):
        api.search(small_encoder(seed=2), index, query, out)
    with pytest.raises(UserError, match="cannot read the image"):
        api.search(small_encoder(seed=1), index, tmp_path / "none.jpg", out)
    with pytest.raises(UserError, match=r"must end in .html or .png"):
        api.search(small_encoder(seed=1), index, query, tmp_path / "s.jpg")
    with pytest.raises(UserError, match="give at least one query: --query IMAGE or --text"):
        api.search(small_encoder(seed=1), index, [], out)
    assert not out.exists()
    out.touch()
    with pytest.raises(UserError, match="already exists"):
        api.search(small_encoder(seed=1), index, query, out)
