"""The models in the package: found by name, compared with their hashes, and small enough for the wheel."""

import tomllib
import zlib
from pathlib import Path

import pytest
import torch

import asterism
from asterism.errors import UserError
from asterism.nn.weights import packaged
from asterism.tools.choices import entries
from tests.packaged_samples import ship

PACKAGE = Path(asterism.__file__).parent


@torch.no_grad()
def test_a_packaged_model_is_loaded_by_its_name(tmp_path, monkeypatch):
    sent = ship(tmp_path / "shipped", monkeypatch)
    loaded, images = asterism.load("nano"), torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(loaded.encode(images).cls, sent.encode(images).cls)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    assert (loaded.mean, loaded.step) == ((0.4, 0.4, 0.4), 7)
    assert entries("models", "nano")["nano"] == "a tiny model"


def test_a_file_of_the_same_name_is_written_with_its_folder(tmp_path, monkeypatch):
    ship(tmp_path / "shipped", monkeypatch)
    monkeypatch.chdir(tmp_path)
    other = asterism.load("nano")
    Path("nano").mkdir()
    other.save("nano", step=1)
    with pytest.warns(UserWarning, match=r"write \./nano"):
        assert asterism.load("nano").step == 7
    for place in ("./nano", Path("nano"), asterism.Run(Path("nano")), asterism.weights(Path("nano"))):
        assert asterism.load(place).step == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\1"), "damaged.*pip install --force-reinstall"),
        (Path.unlink, "not part of this installation.*missing.*wheel"),
    ],
)
def test_a_damaged_or_missing_file_names_the_fix(damage, message, tmp_path, monkeypatch):
    ship(tmp_path / "shipped", monkeypatch)
    damage(tmp_path / "shipped" / "nano.safetensors")
    with pytest.raises(UserError, match=message):
        asterism.load("nano")


def test_an_installation_without_models_still_has_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr(packaged, "folder", lambda: tmp_path)
    assert "vit_small_patch16_224" in entries("models")
    with pytest.raises(UserError, match="no such file"):
        asterism.load("./nano")


@pytest.mark.parametrize("name", packaged.packaged_models())
def test_every_shipped_model_is_what_the_index_says(name):
    if not packaged.is_present(name):
        pytest.skip(f"{name} is not in this checkout")
    encoder = asterism.load(name)  # a warning of something guessed would be an error
    assert encoder.encode(torch.rand(1, 3, 72, 96)).patches.shape == (1, 9 * 12, encoder.backbone.dim)
    assert "## Limits" in packaged.folder().joinpath(f"{name}.md").read_text(encoding="utf-8")


def test_the_wheel_stays_below_ten_megabytes():
    """The files that setuptools packs, compressed as in a wheel."""
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    data = [file for pattern in settings["asterism"] for file in PACKAGE.glob(pattern)]
    assert {file.name for file in packaged.folder().iterdir() if file.is_file()} <= {file.name for file in data}
    files = [*data, *PACKAGE.rglob("*.py")]
    assert sum(len(zlib.compress(file.read_bytes(), 6)) for file in files) < 10e6
