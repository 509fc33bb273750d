"""One command in a process of its own, with limits on its time and memory.

The processes are forked from a server that has already imported the package, so that a case costs what its command
costs, not the seconds that the imports take.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.calls import library

_LOADED = (
    "asterism.cli asterism.models asterism.train.pretraining asterism.finetuning.opening "
    "asterism.finetuning.classification.probe asterism.reports.write asterism.extras.studies.compare "
    "asterism.tools.concepts asterism.tools.predict asterism.tools.export.export asterism.tools.reconstruct "
    "asterism.tools.search asterism.tools.segment asterism.tools.track asterism.methods.dino "
    "asterism.evals.knn timm.models.vision_transformer timm.utils torchvision.io pyarrow.parquet rich.table "
    "asterism.train.engine asterism.train.loop asterism.train.outlook asterism.data.views.compiled_colors "
    "asterism.extras.words.command asterism.extras.words.job asterism.extras.words.opening asterism.index.write "
    "asterism.methods.distill asterism.extras.studies.command torch.utils.tensorboard typer "
    "PIL.PngImagePlugin PIL.JpegImagePlugin tests.campaigns.calls tests.campaigns.campaign"
)
_POLL = 0.02  # seconds
_IDLE = 30.0  # seconds without computing after which a command that is late counts as waiting for ever
_PATIENCE = 10  # times the limit: on a busy machine a command that computes may take so much longer
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_LOADED.split())


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # negative: the signal that killed it
    output: str
    errors: str
    problem: str  # "hang" or "memory" if a limit was exceeded, else empty
    seconds: float
    megabytes: float  # the most that was resident, as far as it was seen
    computed: float  # seconds on a processor, as far as they were seen


def execute(
    words: Sequence[str],
    folder: Path,
    seconds: float = 60.0,
    megabytes: float = 2500,
    inside: Callable[[], None] | None = None,
    *,
    kill_after: float | None = None,
    kill_when: Callable[[int], bool] | None = None,
    watch: Callable[[int], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run `asterism WORDS` in a folder, with the user's cache and temporary files next to it in `cache` and `tmp`.

    seconds: that it may compute, or wait for anything but a processor.
    inside: called in the new process first. kill_after: seconds until SIGKILL, for tests of what a kill leaves behind;
    kill_when: instead, whether to send it now, from the number of the process.
    watch: called often with the number of the process, which leads its own group.
    """
    _start_server()
    cache, temporary = folder.parent / "cache", folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    own = {
        "XDG_CACHE_HOME": str(cache),
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **(environment or {}),
    }
    with tempfile.TemporaryDirectory(prefix="asterism-words-") as place:
        output, errors = Path(place) / "stdout", Path(place) / "stderr"
        process = _CONTEXT.Process(
            target=_command, args=(list(words), str(folder), own, str(output), str(errors), inside)
        )
        start, most, spent, problem = time.monotonic(), 0.0, 0.0, ""
        active = start
        process.start()
        assert process.pid is not None
        while process.exitcode is None:
            process.join(_POLL)
            most = max(most, _resident(process.pid))
            now, before = time.monotonic(), spent
            spent = max(spent, computed(process.pid))
            active = now if spent > before else active
            elapsed = now - start
            if watch is not None:
                watch(process.pid)
            waits = elapsed > seconds and now - active > min(_IDLE, seconds)
            late = waits or spent > seconds or elapsed > _PATIENCE * seconds
            problem = "hang" if late else "memory" if most > megabytes else ""
            due = kill_after is not None and elapsed > kill_after
            if problem or due or (kill_when is not None and kill_when(process.pid)):
                _kill(process.pid)
                process.join()
        _kill(process.pid)  # whatever it started
        seconds = time.monotonic() - start
        return Ended(process.exitcode, _read(output), _read(errors), problem, seconds, most, spent)


@functools.cache
def _start_server() -> None:
    """Its imports take seconds, which must not count for the first command. Its processes can count and fail calls."""
    if (preloaded := library()) is not None:
        os.environ["LD_PRELOAD"] = str(preloaded)
    process = _CONTEXT.Process(target=os.getpid)
    process.start()
    process.join()
    os.environ.pop("LD_PRELOAD", None)


def _command(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    output: str,
    errors: str,
    inside: Callable[[], None] | None,
) -> None:
    os.setsid()
    for name in ("ASTERISM_DEBUG", "LD_PRELOAD"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = None  # read TMPDIR again
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY), (2, errors, os.O_WRONLY)):
        handle = os.open(path, flags | os.O_CREAT, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    for number in (0, 1, 2):
        mode = "r" if number == 0 else "w"
        setattr(sys, ("stdin", "stdout", "stderr")[number], open(number, mode, closefd=False, buffering=1))  # noqa: SIM115
    if inside is not None:
        inside()
    sys.argv = ["asterism", *words]
    from asterism.cli import main

    main()


def _resident(pid: int) -> float:
    """Megabytes that a process holds, 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def computed(pid: int) -> float:
    """Seconds that a process has computed, 0 where the system does not say."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK") if len(numbers) > 12 else 0.0


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
            return


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
