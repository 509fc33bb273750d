import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.extras.papers.landmarks import read_ground_truth
from asterism.extras.papers.retrieval import Retrieval, RetrievalConfig
from asterism.nn.pixel_baseline import pixel_encoder
from tests.evals.samples import COLOURS, write_colours


def _evaluation(path: Path, **settings: object) -> Retrieval:
    config = RetrievalConfig.parse(settings)
    return Retrieval(config, Retrieval.open_parts(config, DataChoice(str(path))))


@pytest.fixture
def landmarks(tmp_path: Path) -> Path:
    """Two images of each colour; queries have their colour inside a box and the opposite colour outside."""
    (tmp_path / "jpg").mkdir()
    names = []
    for name, colour in COLOURS.items():
        for number in range(2):
            shade = np.clip(np.array(colour) + 10 * number, 0, 255)
            Image.fromarray(np.full((20, 30, 3), shade, dtype=np.uint8)).save(tmp_path / "jpg" / f"{name}{number}.jpg")
            names.append(f"{name}{number}")
        picture = np.full((30, 30, 3), 255 - np.array(colour), dtype=np.uint8)
        picture[5:25, 5:25] = colour
        Image.fromarray(picture).save(tmp_path / "jpg" / f"q_{name}.png")
    box = [5.0, 5.0, 25.0, 25.0]
    gnd = [{"easy": [2 * i], "hard": [2 * i + 1], "junk": [(2 * i + 2) % 6], "bbx": box} for i in range(3)]
    content = {"imlist": names, "qimlist": [f"q_{name}" for name in COLOURS], "gnd": gnd}
    (tmp_path / "gnd_tiny.json").write_text(json.dumps(content))
    return tmp_path


def test_queries_are_cropped_to_their_boxes(landmarks: Path) -> None:
    values = dict(_evaluation(landmarks).measure(pixel_encoder()))
    assert list(values) == [f"{m}_{s}" for s in ("medium", "hard") for m in ("map", "mp1", "mp5", "mp10")]
    assert values["map_medium"] == values["map_hard"] == 100.0


def test_labelled_folders(tmp_path: Path) -> None:
    values = dict(_evaluation(write_colours(tmp_path, 5)).measure(pixel_encoder()))
    assert values == {"map": 100.0, "mp1": 100.0, "mp5": 100.0, "mp10": 100.0}


def test_several_ground_truth_files_and_missing_images_are_reported(real_data: Path) -> None:
    with pytest.raises(UserError, match="several ground-truth files"):
        _evaluation(real_data / "revisitop")
    with pytest.raises(UserError, match="the image ashmolean_000283 is missing"):
        _evaluation(real_data / "revisitop" / "gnd_roxford5k.json")


def test_pickles_are_read_and_harmful_ones_are_not(landmarks: Path) -> None:
    content = json.loads((landmarks / "gnd_tiny.json").read_text())
    file = landmarks / "gnd_tiny.pkl"
    file.write_bytes(pickle.dumps(content))
    assert read_ground_truth(file).images == content["imlist"]
    file.write_bytes(pickle.dumps({"imlist": Path}))
    with pytest.raises(UserError, match="only plain lists"):
        read_ground_truth(file)


def test_positions_outside_the_list_are_rejected(landmarks: Path) -> None:
    file = landmarks / "gnd_tiny.json"
    content = json.loads(file.read_text())
    content["gnd"][0]["easy"] = [6]
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="refers to image 6, but lists 6"):
        read_ground_truth(file)
    file.write_text("{}")
    with pytest.raises(UserError, match="not ground truth"):
        read_ground_truth(file)


def test_unreadable_images_and_queries_without_positives(landmarks: Path) -> None:
    file = landmarks / "gnd_tiny.json"
    content = json.loads(file.read_text())
    for entry in content["gnd"]:
        entry["hard"] = []
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"no query of .* \(hard\)"):
        dict(_evaluation(landmarks).measure(pixel_encoder()))
    (landmarks / "jpg" / "red0.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match="red0"):
        dict(_evaluation(landmarks).measure(pixel_encoder()))
