"""Work that takes longer than a request: done once, in a thread of its own, while the page repeats its request."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from asterism.errors import UserError, explain_system_error
from asterism.extras.explorer.answers import Pending, Refused

T = TypeVar("T")
State = Literal["idle", "computing", "ready", "failed"]

_FAST = 0.25  # seconds that a request waits, so that small collections need no second request


@dataclass
class _Job:
    done: threading.Event = field(default_factory=threading.Event)
    value: Any = None
    error: str | None = None


class Jobs:
    """Results by name. Threads are daemons: they end with the program, and every file they write is atomic."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._guard = threading.Lock()

    def result(self, name: str, work: Callable[[], T]) -> T:
        """What `work` returns; `Pending` while it runs, `Refused` if it cannot be done."""
        job = self.start(name, work)
        if not job.done.wait(_FAST):
            raise Pending(name)
        if job.error is not None:
            raise Refused(job.error, 409)
        return job.value

    def latest(self, kind: str, key: str, work: Callable[[], T]) -> T:
        """As `result`, for work on a changing input: one at a time, and only the latest result of its kind is kept."""
        name = f"{kind}: {key}"
        with self._guard:
            others = {
                other: job for other, job in self._jobs.items() if other.startswith(f"{kind}: ") and other != name
            }
            if name not in self._jobs and not all(job.done.is_set() for job in others.values()):
                raise Pending(name)
            for other, job in others.items():
                if job.done.is_set():
                    del self._jobs[other]
        return self.result(name, work)

    def start(self, name: str, work: Callable[[], Any]) -> _Job:
        with self._guard:
            job = self._jobs.get(name)
            if job is None:
                job = self._jobs[name] = _Job()
                threading.Thread(target=_run, args=(job, work), name=f"asterism-{name}", daemon=True).start()
        return job

    def state(self, name: str) -> State:
        job = self._jobs.get(name)
        if job is None:
            return "idle"
        if not job.done.is_set():
            return "computing"
        return "ready" if job.error is None else "failed"


def _run(job: _Job, work: Callable[[], Any]) -> None:
    try:
        job.value = work()
    except (UserError, Refused) as error:
        job.error = str(error)
    except Exception as error:
        traceback.print_exc()  # for the terminal; the page gets a sentence
        job.error = explain_system_error(error) or "this failed; the terminal of the explorer shows why"
    finally:
        job.done.set()
