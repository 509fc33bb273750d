"""Names that have to be downloaded fail at once when no server answers."""

import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from asterism.errors import UserError
from asterism.nn.weights import hub
from asterism.nn.weights.load import load_encoder


@pytest.fixture(autouse=True)
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and a server on a port where nothing listens."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "hf:facebook/dinov2-small"])
def test_an_unreachable_server(name: str) -> None:
    start = time.process_time()
    with pytest.raises(
        UserError, match=r"could not be downloaded: they are not in the local cache, and http.* cannot be"
    ):
        load_encoder(name)
    assert time.process_time() - start < 5
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_cached_model_needs_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "hub/models--me--mine/snapshots/abc"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    (tmp_path / "hub/models--me--mine/refs").mkdir()
    (tmp_path / "hub/models--me--mine/refs/main").write_text("abc")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the server was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)
    monkeypatch.setattr(hub, "_answers", never)
    assert hub.cached_file("me/mine", ("model.safetensors",)) is not None
    assert hub.hub_folder("me/mine") == folder
