import json
import struct

import pytest

from asterism.errors import Interrupted
from asterism.methods.dino import Dino
from tests.train.tiny import pretrain, resume, tiny_recipe

pytest.importorskip("wandb", reason="needs the extra: pip install 'asterism[wandb]'")


_BLOCK, _FILE_HEADER, _HEADER = 32768, 7, 7  # bytes
_FULL, _LAST = 1, 4  # kinds of chunks that end a record


def _records(path):
    """The records of an offline run's file, which has LevelDB's log format: chunks of (checksum, length, kind)."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts, records = path.read_bytes(), _FILE_HEADER, b"", []
    while place + _HEADER <= len(data):
        if _BLOCK - place % _BLOCK < _HEADER:  # the rest of a block is padding
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + _HEADER])
        parts += data[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in (_FULL, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def _logged(path):
    """Rows of values by name, and the settings."""
    rows, settings = [], {}
    for record in _records(path):
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        if record.HasField("run"):
            settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return rows, settings


@pytest.mark.filterwarnings("ignore")  # wandb's own
def test_an_offline_run_has_settings_and_numbers_and_continues_on_resume(tmp_path, monkeypatch):
    recipe = tiny_recipe(
        monitor={"wandb": {"mode": "offline", "project": "birds"}}, trainer={"steps": 4}, checkpoint={"every_steps": 2}
    )
    loss = Dino.loss

    def interrupted(self, batch, progress):
        if progress.step == 3:
            raise Interrupted("stopped", 15)
        return loss(self, batch, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Dino, "loss", interrupted)
        with pytest.raises(Interrupted):
            pretrain(recipe, tmp_path / "run")
    resume(tmp_path / "run")

    entry = json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]
    first, second = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))  # by date
    assert first.name.endswith(entry)
    assert second.name.endswith(entry)
    rows, settings = _logged(first / f"run-{entry}.wandb")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert settings["method"]["name"] == "dino"
    assert settings["monitor"]["wandb"]["project"] == "birds"
    more, _ = _logged(second / f"run-{entry}.wandb")
    assert [row["step"] for row in more] == [3, 4]  # resumed from the checkpoint at step 2
    assert more[0]["loss"] == rows[-1]["loss"]
