"""Every command that writes, with an output that cannot be written.

Read-only and full file systems, an output below a file, a name that is too long, files and folders in the way, links
that someone else has planted; inputs that turn out to be bad when part of the output exists; and repeated commands
after a kill.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.campaigns.campaign import Case
from tests.campaigns.disks import no_large_files, read_only, small_disk
from tests.campaigns.faults import both, put
from tests.campaigns.materials import LINES, SUFFIXES, line, on
from tests.campaigns.processes import Ended, execute

_RESUMES = {"finetune", "align", "compare", "compare --launch"}  # repeated, they continue what a failed one has written


def cases(seed: int) -> Iterator[Case]:
    for name in LINES:
        # Otherwise the other cases could all end with a sentence about the command itself.
        yield on(name, "nothing wrong", line(name), exits=(0,), check=_nothing_temporary)
        yield from _unwritable(name)
        yield from _in_the_way(name)
        yield from _killed(name, random.Random(f"{seed} {name}"))
    yield from _reports()
    yield from _bad_inputs()


def _unwritable(name: str) -> Iterator[Case]:
    inside = partial(on, words=line(name, out="out/made"), change=lambda here: (here / "out").mkdir())
    kept = ("out/*",) if name in _RESUMES else ()
    yield inside(name, "read-only file system", around=lambda here: read_only(here / "out"))
    for kilobytes in (0, 8, 24, 64):
        disk = partial(_small, kilobytes=kilobytes)
        yield inside(f"{name}, {kilobytes} kB left", "full file system", around=disk, exits=(0, 2), kept=kept)
    for limit in (1024, 4096):  # the sentence on stderr must fit
        small = partial(no_large_files, limit)
        yield inside(f"{name}, {limit} bytes", "no file may grow", inside=small, exits=(0, 2), kept=kept)


def _small(here: Path, kilobytes: int):  # type: ignore[no-untyped-def]
    return small_disk(here / "out", kilobytes)


def _in_the_way(name: str) -> Iterator[Case]:
    suffix = SUFFIXES.get(name, "")
    target, words = f"out{suffix}", line(name)
    existing = put(target, "precious") if suffix else put("out/precious.txt", "precious")
    other = put(target, Path.mkdir) if suffix else put("out", "precious")
    yield on(name, "output below a file", line(name, out="out/made"), put("out", "precious"))
    yield on(name, "name too long", line(name, out="x" * 300))
    yield on(name, "path too long", line(name, out="/".join(["d" * 200] * 40)))
    # `evaluate` adds results to a folder.
    yield on(name, "existing output", words, existing, exits=(0,) if name == "evaluate" else (2,))
    yield on(name, "existing output of another kind", words, other)
    unknown = line(name, out="~no-such-user/made")
    yield on(name, "unknown user's home", unknown, exits=(0, 2), outputs=("~no-such-user*",))
    link = both(put("elsewhere/precious", "precious"), put(target, lambda path: path.symlink_to("elsewhere/precious")))
    yield on(name, "link in the way", [*words, *_overwrite(name)], link, exits=(0, 2), outputs=(target,))


def _overwrite(name: str) -> list[str]:
    return [] if name.startswith(("evaluate", "compare")) else ["--overwrite"]


def _killed(name: str, choice: random.Random) -> Iterator[Case]:
    """A command that was killed somewhere, then repeated: it succeeds and leaves nothing temporary."""
    words = line(name, out="out/made")
    for number in range(3):
        after = round(choice.uniform(0.05, 1.0), 3)  # seconds; a command takes about one
        yield on(
            f"{name}, {number}, after {after} s", "repeated after a kill", [*words, *_overwrite(name)],
            lambda here, after=after: execute(words, here, kill_after=after), exits=(0,), check=_nothing_temporary,
        )  # fmt: skip


def _nothing_temporary(here: Path, ended: Ended) -> str | None:
    left = [str(path.relative_to(here)) for path in here.rglob(".*") if path.name.endswith("tmp")]
    return f"temporary files left: {', '.join(left)}" if left else None


def _bad_inputs() -> Iterator[Case]:
    """The last of several inputs is bad, which a command notices after the first of its results."""
    cause = "bad input after good ones"
    for name, file, exits in (
        ("track", "frames/00001.jpg", (2,)),
        ("export safetensors", "finetuned/model.safetensors", (2,)),
        ("concepts", "photos/blue/000.png", (2,)),
        ("reconstruct", "photos/blue/001.png", (2,)),
        ("segment", "frames/00001.jpg", (0,)),
        ("embed npz", "photos/red/001.png", (0,)),
        ("predict", "labelled/red/001.png", (0,)),
    ):
        yield on(name, cause, line(name), partial(_cut_off, file), exits=exits)
    yield on("search", cause, line("search html", "--query", "bad.png"), put("bad.png", "not an image"))
    protocols = line("evaluate", "--protocols", "knn,linear-seg")
    yield on("evaluate", cause, protocols, kept=("out", "out/knn.json"))


def _cut_off(file: str, here: Path) -> None:
    (here / file).write_bytes((here / file).read_bytes()[:40])


def _reports() -> Iterator[Case]:
    report = partial(on, words="report pretrained")
    yield report("report", "read-only file system", around=lambda here: read_only(here / "pretrained"))
    yield report("report, 8 kB left", "full file system", around=lambda here: small_disk(here / "pretrained", 8))
    yield report("report", "no file may grow", inside=no_large_files)
