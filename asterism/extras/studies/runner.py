"""Runs the trials of a study, several at once, each in its own processes, so that none can affect the others."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

from asterism.data.workers import cores
from asterism.errors import Interrupted
from asterism.extras.studies.budget import steps_overrides
from asterism.extras.studies.plan import (
    Command,
    Place,
    Trial,
    evaluate_command,
    is_evaluated,
    is_finished,
    pretrain_command,
    resume_command,
)
from asterism.extras.studies.records import write_record
from asterism.extras.studies.speed import measured_speed
from asterism.extras.studies.study import StudyConfig
from asterism.files import locked
from asterism.ops.vigil import explained
from asterism.train import checkpoint
from asterism.train.run import Run

Report = Callable[[str], None]


@dataclass(frozen=True)
class Slot:
    """A core or a GPU reserved for one trial."""

    environment: Mapping[str, str]
    settings: tuple[str, ...]  # for every training in this slot
    reads_alone: bool  # evaluations use no data workers, which would take the cores of other trials


def slots(jobs: int | None) -> list[Slot]:
    """`jobs` slots; by default one per GPU, or one per core without GPUs."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        return [
            Slot({"CUDA_VISIBLE_DEVICES": str(i % gpus)}, ("trainer.devices=1",), False) for i in range(jobs or gpus)
        ]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return [Slot(one_thread, ("data.workers=0", "trainer.devices=1"), True) for _ in range(jobs or cores())]


class TrialFailed(Exception):
    """A command of a trial failed; the message is shown in the table."""


def run_trials(
    study: StudyConfig, trials: Sequence[Trial], place: Place, slots: Sequence[Slot], report: Report
) -> None:
    """Train and evaluate unfinished trials. The reason of a failure is recorded; other trials are not affected.

    report: gets a sentence when a trial starts training and when it is done, one at a time.
    """
    workers = _Workers(study, trials, place, report)
    with ThreadPoolExecutor(len(slots)) as pool, workers.stopped_on_signals(pool):
        tasks = [pool.submit(workers.work, slot) for slot in slots]
        wait(tasks)
    for task in tasks:
        task.result()  # raises if a worker failed unexpectedly


class _Workers:
    """Threads, one per slot, that take the next trial and wait for its processes."""

    def __init__(self, study: StudyConfig, trials: Sequence[Trial], place: Place, report: Report) -> None:
        self._study, self._place, self._print = study, place, report
        self._waiting = list(trials)
        self._unfinished = {trial.name for trial in trials}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._locks: dict[
            str, int
        ] = {}  # by trial; its processes inherit them, so they outlive this one if it is killed
        self._stopping = False
        self._changed = threading.Condition()  # guards what is above, and wakes threads that have no trial
        self._reporting = threading.Lock()  # a report reads all runs, so none is removed meanwhile

    def work(self, slot: Slot) -> None:
        while (trial := self._next()) is not None:
            try:
                with contextlib.ExitStack() as stack:
                    with explained(f"another process that is at work on {trial.name}"):
                        lock = locked(self._place.record(trial.name).with_suffix(".lock"))
                        self._locks[trial.name] = stack.enter_context(lock)
                    self._trial(trial, slot)
            finally:
                with self._changed:
                    self._unfinished.discard(trial.name)
                    self._changed.notify_all()

    def _next(self) -> Trial | None:
        """The next trial that need not wait for the weights of another one; None if there is nothing left to do."""
        with self._changed:
            while self._waiting and not self._stopping:
                ready = (trial for trial in self._waiting if trial.after not in self._unfinished)
                trial = next(ready, None)
                if trial is not None:
                    self._waiting.remove(trial)
                    return trial
                self._changed.wait()
        return None

    def _trial(self, trial: Trial, slot: Slot) -> None:
        failures: dict[str, str] = {}
        write_record(self._place, trial, failures)
        try:
            if trial.is_trained and not is_finished(self._place, trial.name):
                self._train(trial, slot)
        except TrialFailed as error:
            failures["training"] = str(error)
            self._report(trial, failures)
            return
        for part in self._study.evaluations:
            if self._stopping or is_evaluated(trial, self._place, part):
                continue
            try:
                alone = [f"{protocol}.workers=0" for protocol in part.protocols] if slot.reads_alone else []
                self._execute(trial, slot, evaluate_command(trial, self._place, part, alone))
            except TrialFailed as error:
                failures[self._place.results(trial.name, part).name] = str(error)
        self._report(trial, failures)

    def _train(self, trial: Trial, slot: Slot) -> None:
        if trial.after and not is_finished(self._place, trial.after):
            raise TrialFailed(f"not started: it needs the weights of {trial.after}, which is not finished")
        run = Run(self._place.run(trial.name))
        log = self._place.log(trial.name)
        if done := checkpoint.steps(run.checkpoints):
            self._say(f"{trial.name}: resumed at step {done[-1]:,}; its output: {log}")
            self._execute(trial, slot, resume_command(trial, self._place))
            return
        with self._reporting:
            for stale in (run.path, self._place.folder / "evaluations" / trial.name):
                shutil.rmtree(stale, ignore_errors=True)
        self._say(f"{trial.name}: started, {trial.length}; its output: {log}")
        self._execute(trial, slot, pretrain_command(trial, self._place, self._length(trial, slot), slot.settings))

    def _length(self, trial: Trial, slot: Slot) -> list[str]:
        if trial.budget is None:
            return []
        if not trial.budget.is_measured:
            return trial.budget.overrides(self._study.recipe(trial.run, trial.seed, trial.data))
        speed = measured_speed(
            trial, self._place, lambda command: self._execute(trial, slot, command), list(slot.settings)
        )
        return steps_overrides(speed.steps(trial.budget))

    def _execute(self, trial: Trial, slot: Slot, command: Command) -> None:
        """Run a command, and append its output to the trial's log."""
        log = self._place.log(trial.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"\n$ asterism {' '.join(command)}\n".encode())
            file.flush()
            start = file.tell()
            with self._changed:
                if self._stopping:
                    raise TrialFailed("stopped")
                process = subprocess.Popen(
                    [sys.executable, "-m", "asterism", *command],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **slot.environment},
                    pass_fds=(self._locks[trial.name],),
                    start_new_session=True,  # Ctrl-C reaches only this process, which forwards it once
                )
                self._running.add(process)
            code = process.wait()
            with self._changed:
                self._running.discard(process)
        if code:
            raise TrialFailed("stopped" if self._stopping else reason(log, start, code))

    def _report(self, trial: Trial, failures: Mapping[str, str]) -> None:
        if self._stopping:
            return
        write_record(self._place, trial, failures)
        problems = "; ".join(dict.fromkeys(failures.values()))
        self._say(f"{trial.name}: {problems or 'done'}")

    def _say(self, sentence: str) -> None:
        with self._reporting:
            self._print(sentence)

    @contextmanager
    def stopped_on_signals(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """On Ctrl-C or SIGTERM, let every process save its state, then end the study."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise Interrupted("stopped; every run was saved, and the same command resumes them", number)

        before = {}
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        except BaseException:
            with self._changed:
                self._stopping = True
                for process in self._running:
                    process.terminate()
                self._changed.notify_all()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def reason(log: Path, start: int, code: int) -> str:
    """Why a command failed: its error message, else the last line of its output."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [place for place, line in enumerate(lines) if line.startswith("Error: ")]
    if errors:
        return " ".join(lines[errors[-1] :]).removeprefix("Error: ")
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name}); out of memory?"
    return f"exit code {code}: {lines[-1] if lines else 'no message'}; see {log}"
