"""Every command that writes, with an output that cannot be written.

Read-only and full file systems, an output below a file, a name that is too long, files and folders in the way, links
that someone else has planted; inputs that turn out to be bad when part of the output exists; and repeated commands
after a kill.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.campaigns import materials
from tests.campaigns.campaign import Case
from tests.campaigns.disks import no_large_files, read_only, small_disk
from tests.campaigns.processes import Ended, execute

Words = list[str]
_OUT = "OUT"  # in the words of a command: the output


@dataclass(frozen=True)
class Command:
    """A command that writes a file or a folder."""

    words: Callable[[Path], Words]  # fills a folder with its inputs
    suffix: str = ""  # of the file that it writes; empty for a folder
    resumes: bool = False  # whether a repeated command continues with what a failed one has written

    def on(self, folder: Path, out: str) -> Words:
        return [out if word == _OUT else word for word in self.words(folder)]


def _pretrain(here: Path) -> Words:
    materials.photos(here / "photos")
    return ["pretrain", *materials.DINO, "--data", "photos", "--out", _OUT]


def _finetune(here: Path) -> Words:
    materials.labelled(here / "photos"), materials.weights(here / "w.safetensors")
    words = ["--task", "classify", "--data", "photos", "--out", _OUT]
    return ["finetune", "w.safetensors", *words, *materials.FINETUNING]


def _align(here: Path) -> Words:
    materials.captions(here / "captions"), materials.weights(here / "w.safetensors")
    return ["align", "w.safetensors", "--data", "captions/captions.jsonl", "--out", _OUT, *materials.ALIGNING]


def _distill(here: Path) -> Words:
    materials.photos(here / "photos"), materials.weights(here / "w.safetensors")
    words = ["--data", "photos", "--out", _OUT, "method.teacher=w.safetensors"]
    return ["pretrain", "distill", *materials.SMALL, *words]


def _predict(here: Path) -> Words:
    materials.photos(here / "photos"), materials.finetuned(here / "model")
    return ["predict", "model", "--images", "photos", "--out", _OUT]


def _export(format: str, here: Path) -> Words:
    materials.finetuned(here / "model")
    return ["export", "model", "--to", format, "--out", _OUT]


def _evaluate(here: Path) -> Words:
    materials.photos(here / "photos"), materials.weights(here / "w.safetensors")
    return ["evaluate", "w.safetensors", "--data", "photos", "--out", _OUT, "knn.k=2"]


def _embed(here: Path) -> Words:
    materials.photos(here / "photos"), materials.weights(here / "w.safetensors")
    return ["embed", "w.safetensors", "--data", "photos", "--out", _OUT, "--dense"]


def _segment(here: Path) -> Words:
    materials.weights(here / "w.safetensors"), materials.examples(here / "examples"), materials.frames(here / "frames")
    return ["segment", "w.safetensors", "--examples", "examples", "--images", "frames", "--out", _OUT, "k=3"]


def _track(here: Path) -> Words:
    materials.weights(here / "w.safetensors"), materials.frames(here / "frames"), materials.mask(here / "mask.png")
    return ["track", "w.safetensors", "--video", "frames", "--mask", "mask.png", "--out", _OUT, "radius=2"]


def _concepts(here: Path) -> Words:
    materials.concept_weights(here / "c.safetensors"), materials.photos(here / "photos")
    return ["concepts", "c.safetensors", "photos/red/000.png", "photos/blue/000.png", "--out", _OUT]


def _reconstruct(here: Path) -> Words:
    materials.concept_weights(here / "c.safetensors"), materials.photos(here / "photos")
    return ["reconstruct", "c.safetensors", "photos/red/000.png", "photos/blue/001.png", "--out", _OUT]


def _search(here: Path) -> Words:
    model, data = materials.weights(here / "w.safetensors"), materials.photos(here / "photos")
    materials.index(here / "index.npz", model, data)
    return ["search", "w.safetensors", "--index", "index.npz", "--query", "photos/red/000.png", "--out", _OUT]


_STUDY = """
steps: 2
runs:
  pixels: {model: pixels}
evaluations:
  - {data: photos, protocols: [knn], settings: [knn.k=2], columns: {k-NN: knn.top1_k2}}
"""


def _compare(here: Path) -> Words:
    materials.photos(here / "photos")
    (here / "study.yaml").write_text(_STUDY)
    return ["compare", "study.yaml", "--jobs", "1", "--out", _OUT]


def _launch(here: Path) -> Words:
    return [*_compare(here), "--launch", "torchrun"]


COMMANDS = {
    "pretrain": Command(_pretrain),
    "finetune": Command(_finetune, resumes=True),
    "align": Command(_align, resumes=True),
    "distill": Command(_distill),
    "predict": Command(_predict),
    **{f"export {format}": Command(partial(_export, format)) for format in ("safetensors", "timm", "torchscript")},
    "evaluate": Command(_evaluate),
    "embed npz": Command(_embed, ".npz"),
    "embed parquet": Command(_embed, ".parquet"),
    "segment": Command(_segment),
    "track": Command(_track),
    "concepts": Command(_concepts),
    "reconstruct": Command(_reconstruct),
    "search html": Command(_search, ".html"),
    "search png": Command(_search, ".png"),
    "compare": Command(_compare, resumes=True),
    "compare --launch": Command(_launch, resumes=True),
}


def cases(seed: int) -> Iterator[Case]:
    for name, command in COMMANDS.items():
        # Otherwise the other cases could all end with a sentence about the command itself.
        good = partial(command.on, out=f"out{command.suffix}")
        yield Case(name, "nothing wrong", good, exits=(0,), check=_nothing_temporary)
        yield from _unwritable(name, command)
        yield from _in_the_way(name, command)
        yield from _killed(name, command, random.Random(f"{seed} {name}"))
    yield from _reports()
    yield from _bad_inputs()


def _unwritable(name: str, command: Command) -> Iterator[Case]:
    inside = f"out/made{command.suffix}"

    def prepare(here: Path) -> Words:
        (here / "out").mkdir()
        return command.on(here, inside)

    kept = ("out/*",) if command.resumes else ()
    yield Case(name, "read-only file system", prepare, around=lambda here: read_only(here / "out"))
    for kilobytes in (0, 8, 24, 64):
        disk = partial(_small, kilobytes=kilobytes)
        yield Case(f"{name}, {kilobytes} kB left", "full file system", prepare, around=disk, exits=(0, 2), kept=kept)
    for limit in (1024, 4096):  # the sentence on stderr must fit
        small = partial(no_large_files, limit)
        yield Case(f"{name}, {limit} bytes", "no file may grow", prepare, inside=small, exits=(0, 2), kept=kept)


def _small(here: Path, kilobytes: int):  # type: ignore[no-untyped-def]
    return small_disk(here / "out", kilobytes)


def _in_the_way(name: str, command: Command) -> Iterator[Case]:
    def below_a_file(here: Path) -> Words:
        (here / "out").write_text("precious")
        return command.on(here, f"out/made{command.suffix}")

    yield Case(name, "output below a file", below_a_file)

    def too_long(here: Path) -> Words:
        return command.on(here, f"{'x' * 300}{command.suffix}")

    yield Case(name, "name too long", too_long)

    def deep(here: Path) -> Words:
        return command.on(here, "/".join(["d" * 200] * 40) + f"/made{command.suffix}")

    yield Case(name, "path too long", deep)

    def existing(here: Path) -> Words:
        place = here / f"out{command.suffix}"
        if command.suffix:
            place.write_text("precious")
        else:
            place.mkdir()
            (place / "precious.txt").write_text("precious")
        return command.on(here, place.name)

    exits = (0,) if name == "evaluate" else (2,)  # it adds results to a folder
    yield Case(name, "existing output", existing, exits=exits)

    def other_kind(here: Path) -> Words:
        place = here / f"out{command.suffix}"
        if command.suffix:
            place.mkdir()
        else:
            place.write_text("precious")
        return command.on(here, place.name)

    yield Case(name, "existing output of another kind", other_kind)

    def unknown_user(here: Path) -> Words:
        return command.on(here, f"~no-such-user/made{command.suffix}")

    yield Case(name, "unknown user's home", unknown_user, exits=(0, 2), outputs=("~no-such-user*",))

    def planted(here: Path) -> Words:
        (here / "elsewhere").mkdir()
        (here / "elsewhere" / "precious").write_text("precious")
        (here / f"out{command.suffix}").symlink_to("elsewhere/precious")
        return [*command.on(here, f"out{command.suffix}"), *_overwrite(name)]

    yield Case(name, "link in the way", planted, exits=(0, 2), outputs=(f"out{command.suffix}",))


def _overwrite(name: str) -> Words:
    return [] if name.startswith(("evaluate", "compare")) else ["--overwrite"]


def _killed(name: str, command: Command, choice: random.Random) -> Iterator[Case]:
    """A command that was killed somewhere, then repeated: it succeeds and leaves nothing temporary."""

    def prepare(here: Path, after: float) -> Words:
        words = command.on(here, f"out/made{command.suffix}")
        execute(words, here, kill_after=after)
        return [*words, *_overwrite(name)]

    for number in range(3):
        after = round(choice.uniform(0.05, 1.0), 3)  # seconds; a command takes about one
        yield Case(
            f"{name}, {number}, after {after} s",
            "repeated after a kill",
            partial(prepare, after=after),
            exits=(0,),
            check=_nothing_temporary,
        )


def _nothing_temporary(here: Path, ended: Ended) -> str | None:
    left = [str(path.relative_to(here)) for path in here.rglob(".*") if path.name.endswith("tmp")]
    return f"temporary files left: {', '.join(left)}" if left else None


def _bad_inputs() -> Iterator[Case]:
    """The last of several inputs is bad, which a command notices after the first of its results."""
    cause = "bad input after good ones"

    def damaged(command: Command, file: str, here: Path) -> Words:
        words = command.on(here, f"out{command.suffix}")
        (here / file).write_bytes((here / file).read_bytes()[:40])
        return words

    for name, file in {
        "track": "frames/00001.jpg",
        "export safetensors": "model/model.safetensors",
        "concepts": "photos/blue/000.png",
        "reconstruct": "photos/blue/001.png",
    }.items():
        yield Case(name, cause, partial(damaged, COMMANDS[name], file))
    skipped = {"segment": "frames/00001.jpg", "embed npz": "photos/red/001.png", "predict": "photos/red/001.png"}
    for name, file in skipped.items():
        yield Case(f"{name}, skipped", cause, partial(damaged, COMMANDS[name], file), exits=(0,))

    def second_query(here: Path) -> Words:
        words = [*_search(here), "--query", "bad.png"]
        (here / "bad.png").write_bytes(b"not an image")
        return ["out.html" if word == _OUT else word for word in words]

    yield Case("search", cause, second_query)

    def second_protocol(here: Path) -> Words:
        words = COMMANDS["evaluate"].on(here, "out")
        return [*words, "--protocols", "knn,linear-seg"]

    yield Case("evaluate", cause, second_protocol, kept=("out", "out/knn.json"))

    def two_of_a_name(here: Path) -> Words:
        words = COMMANDS["segment"].on(here, "out")
        (here / "frames" / "00001.png").write_bytes((here / "photo.png").read_bytes())
        return words

    def prepare(here: Path) -> Words:
        materials.photos(here / "photos")
        (here / "photos" / "red" / "000.png").rename(here / "photo.png")
        return two_of_a_name(here)

    def both(here: Path, ended: Ended) -> str | None:
        found = len(list((here / "out" / "masks").iterdir()))
        return None if found == 3 else f"{found} masks of 3 images"

    yield Case("segment, two images of a name", "names that collide", prepare, exits=(0,), check=both)


def _reports() -> Iterator[Case]:
    def prepare(here: Path) -> Words:
        materials.run(here / "run")
        return ["report", "run"]

    yield Case("report", "read-only file system", prepare, around=lambda here: read_only(here / "run"))
    yield Case("report, 8 kB left", "full file system", prepare, around=lambda here: small_disk(here / "run", 8))
    yield Case("report", "no file may grow", prepare, inside=no_large_files)
