"""Clients that label images in the explorer, while its server is killed, stopped, and gets a full or failing disk."""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tests.campaigns.processes import execute

_CLIENTS = 4
_ROWS = 6  # images that each client labels in turn
_GENERATION = (10.0, 60.0)  # seconds until a server is killed


def _printing_to(path: str, inside: Callable[[], None]) -> None:
    """What the server prints, its address, goes to a file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.close(handle)
    inside()


@dataclass
class LabelClients:
    """Servers of one folder, one after the other, and what their clients know."""

    run: Path
    data: Path
    place: Path
    inside: Callable[[], None]  # in the server's process
    disturb: Callable[[int], None]
    dice: random.Random
    servers: int = 0
    answered: Counter[int] = field(default_factory=Counter)  # by row: the number of the last answered label
    begun: Counter[int] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)  # by status; 0: none
    wrong: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _gone: threading.Event = field(default_factory=threading.Event)  # this generation's server

    def __post_init__(self) -> None:
        self._address = self.place.parent / "address"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    @property
    def words(self) -> str:
        return (
            f"{self.servers} servers, {self.answers[200]} labels answered, {self.begun.total()} begun, "
            f"{len(self.wrong)} wrong; answers {dict(self.answers)}"
        )

    def _serve(self) -> None:
        while not self._over.is_set():
            self.servers += 1
            self._gone.clear()
            self._address.unlink(missing_ok=True)
            clients = threading.Thread(target=self._clients)
            clients.start()
            words = ["explore", str(self.run), "--data", str(self.data), "--allow-writes", "labels", "--no-browser"]
            ended = execute(
                words,
                self.place,
                600,
                inside=partial(_printing_to, str(self._address), self.inside),
                watch=self.disturb,
                kill_when=partial(self._is_due, time.monotonic() + self.dice.uniform(*_GENERATION)),
            )
            self._gone.set()
            clients.join()
            refused = ended.code == 2 and "Error" in ended.errors
            if (ended.code != -signal.SIGKILL and not refused) or "Traceback" in ended.errors:
                self._say_wrong(f"the server ended with {ended.problem or ended.code}: {ended.errors[-1500:]}")
            self._check_log()

    def _is_due(self, deadline: float, pid: int) -> bool:
        return self._over.is_set() or time.monotonic() > deadline

    def _clients(self) -> None:
        """The first label of a server is followed by a table of all; then all clients label at once."""
        while not self._gone.wait(0.1):
            text = self._address.read_text() if self._address.exists() else ""
            if "http://" in text:
                break
        else:
            return
        address = next(word for word in text.split() if word.startswith("http://"))
        before = Counter(self.answered)
        if self._label(address, 0):
            self._check_table(before)
        threads = [threading.Thread(target=self._client, args=(address, number)) for number in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, address: str, number: int) -> None:
        turn = 0
        while not self._gone.wait(0.1):
            self._label(address, _ROWS * number + turn % _ROWS)
            turn += 1

    def _label(self, address: str, row: int) -> bool:
        self.begun[row] += 1
        number, status, place = self.begun[row], 0, urlsplit(address)
        body = json.dumps({"rows": [row], "label": f"{row}-{number}"})
        connection = http.client.HTTPConnection(place.netloc, timeout=30)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", f"{place.path}api/use/label", body)
            status = connection.getresponse().status
        self.answers[status] += 1
        if status == 200:
            self.answered[row] = number
        elif status not in (0, 409):
            self._say_wrong(f"a label was answered with {status}")
        return status == 200

    def _check_log(self) -> None:
        """Each image's label is the last that was answered, or one that was begun later."""
        found: Counter[int] = Counter()
        log = self.place / "labels" / "labels.jsonl"
        for line in log.read_bytes().split(b"\n")[:-1] if log.exists() else ():
            row, number = map(int, json.loads(line)["label"].split("-"))
            found[row] = number
        self._compare("the log", found, self.answered)

    def _check_table(self, answered: Counter[int]) -> None:
        with (self.place / "labels" / "labels.csv").open(newline="") as file:
            labels = [record["label"].split("-") for record in csv.DictReader(file)]
        self._compare("the table", Counter({int(row): int(number) for row, number in labels}), answered)

    def _compare(self, where: str, found: Counter[int], answered: Counter[int]) -> None:
        for row, number in answered.items():
            if not number <= found[row] <= self.begun[row]:
                self._say_wrong(f"label {number} of image {row} was answered, but {where} has {found[row]}")

    def _say_wrong(self, words: str) -> None:
        self.wrong.append(words)
        print(f"WRONG in the explorer: {words}", flush=True)
