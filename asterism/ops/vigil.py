"""Signs of life between processes that work together: for which one the others wait, and when to give it up.

The work between two exchanges may take seconds in one process and hours in another, so no exchange has a time limit of
its own. Instead every process publishes, every two seconds, how many exchanges it has begun and which function it is
in. A process that waits for ten seconds prints which other one has not come, and what that one does. One that has shown
no sign of life for `ASTERISM_PATIENCE` minutes was stopped, or its machine or network failed; those that wait for it
then end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any

from asterism.errors import UserError

SOON = 10.0  # seconds after which a wait is explained
_BEAT, _LOOK = 2.0, 1.0  # seconds between signs, and between looks at them
_QUIET = 5.0  # seconds without a sign that are more than chance
_AGAIN = 6  # times as long until the next explanation
_VARIABLE, _MINUTES = "ASTERISM_PATIENCE", 10.0
_USER_ERROR = 2  # exit code
_OWN = ("asterism.ops.collectives", "asterism.ops.vigil")


def patience() -> timedelta:
    """How long a process without a sign of life is awaited."""
    text = os.environ.get(_VARIABLE, str(_MINUTES))
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes <= 1e6:
        raise UserError(f"{_VARIABLE} = {text!r} must be a number of minutes, for example {_MINUTES:g}")
    return timedelta(minutes=minutes)


@contextlib.contextmanager
def explained(wait: str) -> Iterator[None]:
    """Print what this process waits for, if the block takes longer than ten seconds."""
    timer = threading.Timer(SOON, _say, (f"Waiting for {wait}",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_this_process(reason: str) -> None:
    """For a process whose main thread waits in a library, which nothing can interrupt."""
    _say(f"Error: {reason}")
    os._exit(_USER_ERROR)


@dataclass
class _Sign:
    """What a process publishes."""

    beat: int = 0
    exchanges: int = 0  # that it has begun
    doing: str = ""
    host: str = ""


@dataclass
class Vigil:
    """The signs of this process and those of the others.

    give_up: called in a thread with the ranks that were lost and the reason. It must make this process end.
    """

    rank: int
    size: int
    store: Any
    give_up: Callable[[list[int], str], None]
    _exchanges: int = 0
    _since: float | None = None  # when this process began the exchange in which it waits
    _signs: dict[int, _Sign] = field(default_factory=dict)
    _heard: float = 0.0  # when the meeting point last answered
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        self._publish(0)
        self._heard = time.monotonic()
        for task in (self._exchange_signs, self._judge):
            self._threads.append(threading.Thread(target=task, name="asterism-vigil", daemon=True))
            self._threads[-1].start()
        atexit.register(self.end)

    def end(self) -> None:
        """Wait for the threads: one that is in a library while Python ends would abort the process."""
        atexit.unregister(self.end)
        self._over.set()
        for thread in self._threads:
            thread.join(_BEAT)

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """The block exchanges data with all other processes."""
        outermost = self._since is None
        if outermost:
            self._exchanges += 1
            self._since = time.monotonic()
        try:
            yield
        finally:
            if outermost:
                self._since = None

    def await_all(self, limit: timedelta) -> None:
        """Until every process has published its first sign."""
        start, said = time.monotonic(), False
        while missing := [rank for rank in range(self.size) if not self.store.check([_key(rank)])]:
            waited = time.monotonic() - start
            names = _ranks(missing, self.size)
            if waited > limit.total_seconds():
                raise UserError(f"{names} did not start within {limit.total_seconds() / 60:g} minutes ({_VARIABLE})")
            if waited > SOON and not said:
                said = True
                _say(f"Waiting for {names} to start")
            time.sleep(0.05)

    def _publish(self, beat: int) -> None:
        sign = _Sign(beat, self._exchanges, _place_of_main_thread(), socket.gethostname())
        self.store.set(_key(self.rank), json.dumps(vars(sign)))

    def _exchange_signs(self) -> None:
        """Blocks if the process that holds the meeting point was stopped, so another thread judges."""
        beat = 0
        with contextlib.suppress(RuntimeError, OSError):  # the meeting point has gone
            while not self._over.wait(_BEAT):
                beat += 1
                self._publish(beat)
                if self._since is not None:
                    texts = self.store.multi_get([_key(rank) for rank in range(self.size)])
                    self._signs = {rank: _Sign(**json.loads(text)) for rank, text in enumerate(texts)}
                self._heard = time.monotonic()

    def _judge(self) -> None:
        limit = patience().total_seconds()
        number, next_words, silent = -1, SOON, dict[int, float]()
        beats: dict[int, int] = {}
        while not self._over.wait(_LOOK):
            since = self._since
            if since is None or number != self._exchanges:
                number, next_words, silent = self._exchanges, SOON, dict.fromkeys(range(self.size), 0.0)
                continue
            now, signs = time.monotonic(), dict(self._signs)
            # Counted in looks, because a clock runs on while all processes are suspended.
            unanswered = now - self._heard > _QUIET  # by the meeting point, which the first process holds
            for rank in silent:
                quiet = rank == 0 if unanswered else rank in signs and signs[rank].beat == beats.get(rank)
                silent[rank] = silent[rank] + _LOOK if quiet and rank != self.rank else 0.0
            beats = {rank: sign.beat for rank, sign in signs.items()}
            quiet_ranks = [rank for rank, seconds in silent.items() if seconds >= _QUIET]
            late = [rank for rank, sign in signs.items() if sign.exchanges < number and rank != self.rank]
            awaited = sorted({*quiet_ranks, *late})
            speaks = self.rank == min((rank for rank in range(self.size) if rank not in awaited), default=0)
            if awaited and now - since >= next_words:
                next_words *= _AGAIN
                if speaks:
                    _say(self._explanation(awaited, silent, now - since, limit))
            lost = [rank for rank, seconds in silent.items() if seconds > limit + (0 if speaks else SOON)]
            if lost:
                span = f"{limit / 60:g} minutes ({_VARIABLE})"
                cause = "it was stopped, or its machine or network failed"
                self.give_up(lost, f"{_ranks(lost, self.size)} showed no sign of life for {span}: {cause}")
                return

    def _explanation(self, awaited: list[int], silent: dict[int, float], waited: float, limit: float) -> str:
        told = []
        for rank in awaited[:4]:
            sign = self._signs.get(rank, _Sign())
            place = f"on {sign.host} " if sign.host else ""
            if silent[rank] >= _QUIET:
                told.append(f"rank {rank} {place}shows no sign of life, and is given up after {limit / 60:g} minutes")
            else:
                told.append(f"rank {rank} {place}is at work in {sign.doing or 'its program'}")
        return f"Waiting for {_ranks(awaited, self.size)} since {waited:.0f} s: {'; '.join(told)}"


def _key(rank: int) -> str:
    return f"sign {rank}"


def _ranks(ranks: list[int], size: int) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown} of {size}"


def _place_of_main_thread() -> str:
    """The innermost function of this package that the main thread is in."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("asterism.") and module not in _OWN:
            return f"{module}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
