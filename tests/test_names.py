"""Names of files and classes may be anything; what is shown and stored is text."""

import os
from pathlib import Path

import pytest
import torch

from asterism.errors import UserError
from asterism.files import write_text
from asterism.inputs import as_text, output_path
from asterism.nn.safetensors_file import read_safetensors
from asterism.tools.predict import _decoded
from asterism.viz.pictures import captioned
from tests.evals.samples import write_colours

FOREIGN = os.fsdecode(b"\xe9t\xe9")


def test_bytes_that_are_not_text_are_written_as_python_writes_them(tmp_path: Path) -> None:
    assert as_text(FOREIGN) == as_text(b"\xe9t\xe9") == "\\xe9t\\xe9"
    write_text(tmp_path / "names", f"{FOREIGN}\n")
    assert (tmp_path / "names").read_text() == "\\udce9t\\udce9\n"


def test_predictions_name_every_image(tmp_path: Path) -> None:
    """With the key that `embed` gives the same image."""
    photos = write_colours(tmp_path / "photos", 1)
    (photos / "red/000.png").rename(photos / f"red/{FOREIGN}.png")
    assert [key for key, _, _ in _decoded(photos, [photos / f"red/{FOREIGN}.png"], [])] == ["red/\\xe9t\\xe9.png"]


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", FOREIGN, "\t"])
def test_a_picture_shows_any_name(name: str) -> None:
    assert captioned(torch.zeros(3, 16, 16, dtype=torch.uint8), name).shape[0] == 3


def test_what_could_not_be_read_again_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\\xe9t\\xe9 is not UTF-8.*choose another --out"):
        output_path(tmp_path / FOREIGN)
    (weights := tmp_path / f"{FOREIGN}.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"\\xe9t\\xe9.safetensors cannot be opened.*rename it"):
        read_safetensors(weights)
