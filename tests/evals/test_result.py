import json
from pathlib import Path

import pytest

from asterism.errors import UserError
from asterism.evals.result import DataUsed, Result, read_results
from asterism.types import Model


def result(**changes: object) -> Result:
    values = {
        "protocol": "knn",
        "values": {"top1_k20": 51.5},
        "constants": {"k": [20], "temperature": 0.07},
        "model": Model("runs/x", 40),
        "train": DataUsed("set/train", 10, "ab"),
        "test": DataUsed("set/test", 5, "cd"),
        "seconds": 1.5,
        "notes": ("a note",),
    }
    return Result(**values | changes)


def test_a_written_result_is_read_back(tmp_path: Path) -> None:
    written = result(baselines={"pixels": {"top1_k20": 30.0}}).write(tmp_path / "eval")
    assert written.path == tmp_path / "eval" / "knn.json"
    assert read_results(tmp_path / "eval") == [written]
    content = json.loads(written.path.read_text())
    assert content["model"] == {"name": "runs/x", "step": 40}
    assert content["train"]["fingerprint"] == "ab"
    assert {"asterism", "torch", "timm", "python"} <= set(content["versions"])


def test_a_later_result_replaces_the_whole_file(tmp_path: Path) -> None:
    result().write(tmp_path)
    result(values={"top1_k20": 60.0}).write(tmp_path)
    assert [r.values["top1_k20"] for r in read_results(tmp_path)] == [60.0]
    assert [path.name for path in tmp_path.iterdir()] == ["knn.json"]


def test_other_data_has_its_own_file(tmp_path: Path) -> None:
    tested = [DataUsed("set/test", 5, "cd"), DataUsed("other set/val", 7, "ef"), DataUsed("other set/val", 9, "01")]
    for part in tested:
        result(test=part).write(tmp_path)
    names = ["knn.json", "knn@other-set-val.json"]
    (third,) = {path.name for path in tmp_path.iterdir()} - set(names)
    assert third.startswith("knn@other-set-val-")
    names.append(third)
    for part, name in zip(tested, names, strict=True):
        again = result(test=part, values={"top1_k20": 1.0}).write(tmp_path)
        assert again.path == tmp_path / name
    assert {r.test.fingerprint for r in read_results(tmp_path)} == {"cd", "ef", "01"}


def test_other_settings_have_their_own_file(tmp_path: Path) -> None:
    for k in (20, 50, 100, 50):
        result(constants={"k": (k,)}, values={"top1_k20": float(k)}).write(tmp_path)
    assert sorted(r.values["top1_k20"] for r in read_results(tmp_path)) == [20.0, 50.0, 100.0]


def test_wrong_values_are_named(tmp_path: Path) -> None:
    path = result().write(tmp_path).path
    assert path is not None
    content = json.loads(path.read_text())
    for name, wrong in [
        ("values", {}),
        ("values", {"top1_k20": "high"}),
        ("values", {"top1_k20": None}),
        ("values", [1]),
        ("model", "dino"),
        ("model", {"name": 5}),
        ("test", {"name": "set", "images": "many", "fingerprint": "cd"}),
        ("baselines", {"pixels": 3}),
        ("notes", 7),
        ("seconds", [1]),
    ]:
        path.write_text(json.dumps(content | {name: wrong}))
        with pytest.raises(UserError, match=rf"is not a result of `asterism evaluate` \({name}.*delete it"):
            read_results(tmp_path)
    for text in (b"", b"[]", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(UserError, match="delete it and evaluate again"):
            read_results(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="delete it and evaluate again"):
        read_results(tmp_path)
