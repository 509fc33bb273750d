"""An answered label is found later: in the log and in the table, with parallel clients, after kills and restarts."""

import csv
import http.client
import json
import multiprocessing
import os
import signal
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from asterism.errors import UserError
from asterism.extras.explorer.explored import Explored
from asterism.extras.explorer.labels import LOG, Labels
from tests.extras.explorer.explored_sample import client_of, sample
from tests.extras.explorer.served import served

KEYS = [f"{number}.png" for number in range(24)]


def in_the_table(explored: Explored) -> dict[str, str]:
    assert explored.writes is not None
    with (explored.writes / "labels.csv").open(newline="") as file:
        return {row["key"]: row["label"] for row in csv.DictReader(file)}


def by_key(explored: Explored) -> dict[str, str]:
    return {explored.collection.keys[row]: label for row, label in explored.labels.all().items()}


def test_parallel_requests_and_a_restart_lose_nothing(tmp_path: Path) -> None:
    explored = sample(tmp_path)
    with served(explored) as address, ThreadPoolExecutor(24) as clients:
        place = urlsplit(address)

        def label(number: int) -> int:
            body = json.dumps({"rows": [number % 12], "label": f"{number % 12}"})
            with closing(http.client.HTTPConnection(place.netloc)) as connection:
                connection.request("POST", f"{place.path}api/use/label", body)
                return connection.getresponse().status

        assert set(clients.map(label, range(24))) == {200}
    expected = {key: str(row) for row, key in enumerate(explored.collection.keys)}
    assert in_the_table(explored) == by_key(explored) == expected
    client_of(again := sample(tmp_path)).post("use/label", {"rows": [3], "label": "new"})
    assert in_the_table(again) == by_key(again) == {**expected, again.collection.keys[3]: "new"}


def _explorer(log: Path, own: range, seed: int, told: int) -> None:
    """Labels its own images in turn, for ever; says before and after each change what it is."""
    labels, step = Labels(KEYS, log), 0
    while True:
        row, label = own[step % len(own)], f"{seed}-{step}"
        os.write(told, f"begun {row} {label}\n".encode())
        with labels.changing() as give:
            give([row], label)
        os.write(told, f"answered {row} {label}\n".encode())
        step += 1


def test_no_kill_loses_an_answered_label(tmp_path: Path) -> None:
    """Histories of four explorers of one folder, killed together three times: the label found is that of the last
    answered change of its image, or of one that was begun after it."""
    history: dict[int, list[tuple[str, str]]] = defaultdict(list)
    fork = multiprocessing.get_context("fork")
    for generation in range(3):
        read, write = os.pipe()
        own = [range(first, first + 6) for first in range(0, 24, 6)]
        explorers = [
            fork.Process(target=_explorer, args=(tmp_path / LOG, rows, 10 * generation + number, write))
            for number, rows in enumerate(own)
        ]
        for each in explorers:
            each.start()
        os.close(write)
        time.sleep(0.15)
        for each in explorers:
            assert each.pid is not None
            os.kill(each.pid, signal.SIGKILL)
        with os.fdopen(read) as lines:
            for what, row, label in map(str.split, lines):
                history[int(row)].append((what, label))
        for each in explorers:
            each.join()
        found = Labels(KEYS, tmp_path / LOG).all()
        for row, changes in history.items():
            answered = [place for place, (what, _) in enumerate(changes) if what == "answered"]
            if answered:
                assert found[row] in {label for _, label in changes[answered[-1] :]}, (row, changes)
    assert sum(what == "answered" for changes in history.values() for what, _ in changes) > 24


def test_a_torn_line_is_removed_and_others_are_kept(tmp_path: Path) -> None:
    log = tmp_path / LOG
    with Labels(KEYS, log).changing() as give:
        give([0, 1], "a")
        give([1], None)
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:10])
    other = Labels(KEYS[1:], log)  # another collection: the label of an image that it lacks is kept
    assert log.read_bytes() == whole
    assert (other.all(), other.by_key()) == ({}, {KEYS[0]: "a"})
    log.write_bytes(b"{}\n" + whole)
    with pytest.raises(UserError, match="remove this line"):
        Labels(KEYS, log)


def _fails(handle: int) -> None:
    raise OSError("failed")


def test_a_failed_write_is_not_a_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = Labels(KEYS, tmp_path / LOG)
    with labels.changing() as give:
        give([0], "a")
        monkeypatch.setattr(os, "fsync", _fails)
        with pytest.raises(OSError, match="failed"):
            give([0], "b")
        monkeypatch.undo()
        give([1], "c")
    assert Labels(KEYS, tmp_path / LOG).all() == labels.all() == {0: "a", 1: "c"}


def test_a_table_of_others_is_not_replaced(tmp_path: Path) -> None:
    sample(tmp_path)
    (tmp_path / "written" / "labels.csv").write_text("precious")
    with pytest.raises(UserError, match=r"labels\.jsonl"):
        sample(tmp_path)


@pytest.mark.parametrize("label", ["a\ud800", "\udc80", "a\nb", "\x1b[2J"])
def test_a_label_is_text_in_one_line(tmp_path: Path, label: str) -> None:
    client = client_of(sample(tmp_path))
    assert client.post("use/label", {"rows": [0], "label": label}).status_code == 400
    assert client.post("use/label", {"rows": [0], "label": "👩‍🌾 é"}).json()["labelled"] == 1
