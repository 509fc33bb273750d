"""What the cases are made of: a command line names its inputs, and each is made where it does not exist yet."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asterism.images.masks import save_mask
from asterism.nn.concepts import concepts_file
from tests.campaigns.campaign import Case
from tests.campaigns.processes import execute
from tests.concept_samples import concept_encoder
from tests.data.clips import frame_and_mask, write_frames
from tests.evals.samples import small_encoder, write_colours
from tests.extras.words.tiny import captions

# Networks and lengths that a case can afford.
_SHORT = "trainer.steps=2 trainer.batch_size=4 data.workers=0 monitor.tensorboard=false"
_NETWORK = "backbone.image_size=16 backbone.patch_size=8 backbone.dim=16 backbone.depth=1 backbone.heads=2"
DINO = f"dino {_NETWORK} {_SHORT} method.out_dim=32 method.local_views=0"
FINETUNING = (  # on `labelled`, with the two measurements that choose the best weights
    f"{_SHORT} checkpoint.every_steps=1 validation.share=0.25 validation.every_epochs=0.3 optim.lr=0.5 "
    "optim.warmup_steps=0"
)
ALIGNING = (
    f"{_SHORT} text.dim=16 text.depth=1 text.heads=2 data.held_out=0.2 trainer.devices=1 checkpoint.every_steps=1"
)
CAPTIONS = "captions/captions.jsonl"

# Every command, with OUT for what it writes.
LINES = {
    "pretrain": f"pretrain {DINO} --data photos --out OUT",
    "finetune": f"finetune w.safetensors --task classify --data labelled --out OUT {FINETUNING}",
    "align": f"align w.safetensors --data {CAPTIONS} --out OUT {ALIGNING}",
    "distill": f"pretrain distill {_NETWORK} {_SHORT} --data photos --out OUT method.teacher=w.safetensors",
    "predict": "predict finetuned --images labelled --out OUT",
    **{f"export {to}": f"export finetuned --to {to} --out OUT" for to in ("safetensors", "timm")},
    "evaluate": "evaluate w.safetensors --data photos --out OUT knn.k=2",
    "embed npz": "embed w.safetensors --data photos --out OUT --dense",
    "embed parquet": "embed w.safetensors --data photos --out OUT --dense",
    "segment": "segment w.safetensors --examples examples --images frames --out OUT k=3",
    "track": "track w.safetensors --video frames --mask mask.png --out OUT radius=2",
    "concepts": "concepts c.safetensors photos/red/000.png photos/blue/000.png --out OUT",
    "reconstruct": "reconstruct c.safetensors photos/red/000.png photos/blue/001.png --out OUT",
    "search html": "search w.safetensors --index index.npz --query photos/red/000.png --out OUT",
    "search png": "search w.safetensors --index index.npz --query photos/red/000.png --out OUT",
    "compare": "compare study.yaml --jobs 1 --out OUT",
    "compare --launch": "compare study.yaml --jobs 1 --out OUT --launch torchrun",
}
SUFFIXES = {"embed npz": ".npz", "embed parquet": ".parquet", "search html": ".html", "search png": ".png"}
OF_A_STUDY = "evaluations:\n  - {data: photos, protocols: [knn], settings: [knn.k=2], columns: {k-NN: knn.top1_k2}}\n"


def line(name: str, *more: str, out: str = "out") -> list[str]:
    """The words of a command that writes to `out`, with its suffix, and more words."""
    target = f"{out}{SUFFIXES.get(name, '')}"
    return [*(target if word == "OUT" else word for word in LINES[name].split()), *more]


def prepared(here: Path, words: str | Sequence[str]) -> list[str]:
    """The words, after everything that they name has been made in the folder."""
    found = words.split() if isinstance(words, str) else list(words)
    for word in found:
        name = word.rpartition("=")[2].partition("/")[0]
        if name in MAKERS and not (here / name).exists():
            MAKERS[name](here / name)
    return found


def on(
    name: str, cause: str, words: str | Sequence[str], change: Callable[[Path], object] | None = None, **more: Any
) -> Case:
    """A command line, in the folder with all that it names, which has been changed."""

    def prepare(here: Path) -> Sequence[str]:
        found = prepared(here, words)
        if change is not None:
            change(here)
        return found

    return Case(name, cause, prepare, **more)


def _weights(file: Path) -> Path:
    """A small encoder without concepts."""
    return _copied(_home("weights.safetensors", small_encoder().save), file)


def _concept_weights(file: Path) -> Path:
    """A small encoder with concepts and a decoder, which are in a second file."""
    made = _home("model.safetensors", concept_encoder().save)
    _copied(concepts_file(made), concepts_file(file))
    return _copied(made, file)


def _mask(file: Path) -> Path:
    """The two objects of the first frame."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_mask(frame_and_mask(0)[1], file)
    return file


def _examples(folder: Path) -> Path:
    """A frame and its mask."""
    write_frames(folder, 1)
    _mask(folder / "00000.png")
    return folder


def _index(file: Path) -> Path:
    """The photos, embedded with the weights; with the aligned model where there is one."""
    model, data = ("aligned", "captions") if (file.parent / "aligned").exists() else ("w.safetensors", "photos")
    words = prepared(file.parent, f"embed {model} --data {data} --out {file}")
    ended = execute(
        [str((file.parent / word).resolve()) if word in (model, data) else word for word in words], _place()
    )
    assert ended.code == 0, ended.errors
    return file


def _study(file: Path) -> Path:
    prepared(file.parent, "photos")
    file.write_text(f"steps: 2\nruns:\n  pixels: {{model: pixels}}\n{OF_A_STUDY}")
    return file


def _copied(source: Path, target: Path) -> Path:
    """A copy of a file or folder that is made once per campaign."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
    return target


def _copy(make: Callable[[], Path]) -> Callable[[Path], Path]:
    return lambda place: _copied(make(), place)


@functools.cache
def _place() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="asterism-materials-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "here").mkdir()
    return folder / "here"


def _home(name: str, save) -> Path:  # type: ignore[no-untyped-def]
    path = _place() / name
    return path if path.exists() else save(path, step=7)


@functools.cache
def _made(name: str) -> Path:
    """A finished run of two steps, with checkpoints of both and the result of an evaluation; made once."""
    out = f"made-{name}"
    first, then = {
        "pretrained": (line("pretrain", "checkpoint.every_steps=1", out=out), f"evaluate {out} --data photos knn.k=2"),
        "finetuned": (line("finetune", out=out), f"evaluate {out} --data labelled"),
        "aligned": (line("align", out=out), f"evaluate {out} --data {CAPTIONS} --protocols text-retrieval"),
    }[name]
    for words in (prepared(_place(), first), prepared(_place(), then)):
        at = words.index("--data") + 1
        ended = execute([*words[:at], str(_place() / words[at]), *words[at + 1 :]], _place(), seconds=600)
        assert ended.code == 0, ended.problem or ended.errors
    return _place() / out


MAKERS: dict[str, Callable[[Path], Path]] = {
    "photos": _copy(functools.cache(lambda: write_colours(_place() / "original/photos", 2, size=(16, 16)))),
    "labelled": _copy(functools.cache(lambda: write_colours(_place() / "original/labelled", 4, size=(16, 16)))),
    "captions": _copy(functools.cache(lambda: captions(_place() / "original/captions", each=2).parent)),
    "w.safetensors": _weights,
    "c.safetensors": _concept_weights,
    "frames": lambda folder: write_frames(folder, 2),
    "examples": _examples,
    "mask.png": _mask,
    "index.npz": _index,
    "study.yaml": _study,
    **{name: _copy(functools.partial(_made, name)) for name in ("pretrained", "finetuned", "aligned")},
}
