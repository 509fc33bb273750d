"""Writes the files that later versions must read: `python -m tests.versions.make FOLDER`, once per released version."""

import contextlib
import json
import os
import platform
import shutil
import sys
from pathlib import Path

from PIL import Image

import asterism

_FOUR_STEPS = [
    *["trainer.steps=4", "trainer.batch_size=4", "trainer.accelerator=cpu", "data.workers=0"],
    *["checkpoint.every_steps=2", "monitor.log_every=1", "monitor.tensorboard=false"],
]
SETTINGS = [
    *[*_FOUR_STEPS, "monitor.knn=null", "backbone.image_size=16", "backbone.patch_size=4", "backbone.dim=8"],
    *["backbone.depth=1", "backbone.heads=2"],
    *["method.decoder_dim=8", "method.decoder_depth=1", "method.decoder_heads=2"],
]
TASK_SETTINGS = [
    *[*_FOUR_STEPS, "validation.share=0.25", "validation.every_epochs=1", "optim.lr=0.5", "optim.warmup_steps=0"]
]
WORD_SETTINGS = [*[*_FOUR_STEPS, "data.held_out=0.25", "text.dim=8", "text.depth=1", "text.heads=2", "text.context=8"]]


def photos(folder: Path) -> None:
    """Eight pictures of two classes."""
    for name, color in (("red", (200, 30, 20)), ("blue", (20, 30, 200))):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            picture = Image.new("RGB", (18, 16), color)
            picture.paste((250, 240, 10 * number), (2 * number, 3, 2 * number + 6, 9))
            picture.save(folder / name / f"{number}.png")


def make(folder: Path) -> None:
    folder.mkdir()
    with contextlib.chdir(folder):
        photos(Path("photos"))
        run = asterism.pretrain("mae", "photos", "run", overrides=SETTINGS)
        asterism.evaluate(run, protocols="knn", knn={"k": [2]})
        for suffix in ("npz", "parquet"):
            asterism.embed("run", "photos", f"index.{suffix}")
        vectors = asterism.load("run").encode([Path("photos/red/0.png"), Path("photos/blue/3.png")]).cls
        losses = [record["loss"] for record in run.metrics()]
        Path("expected.json").write_text(json.dumps({"vectors": vectors.tolist(), "losses": losses}, indent=1) + "\n")
        _shorten(Path("run"))
        make_finetuned()
        make_aligned()


def make_finetuned() -> None:
    """In the current folder, from `run` on `photos`."""
    run = asterism.finetune("run", "classify", "photos", "finetuned", overrides=TASK_SETTINGS)
    asterism.evaluate(run)
    found = asterism.load("finetuned").predict([Path("photos/red/0.png"), Path("photos/blue/3.png")])
    scores = [prediction.scores.tolist() for prediction in found]
    losses = [record["loss"] for record in run.metrics() if "loss" in record]
    written = json.dumps({"scores": scores, "losses": losses}, indent=1)
    Path("expected_finetuned.json").write_text(written + "\n")
    _shorten(run.path)


def make_aligned() -> None:
    """In the current folder, from `run` on `photos` with captions."""
    images = sorted(str(path) for path in Path("photos").rglob("*.png"))
    lines = [{"image": name, "captions": [f"a {Path(name).parent.name} picture", Path(name).stem]} for name in images]
    Path("captions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = asterism.align("run", "captions.jsonl", out="aligned", overrides=WORD_SETTINGS)
    asterism.evaluate(run, "captions.jsonl", "text-retrieval")
    sentences = asterism.load("aligned").encode_text(["a red picture", "a blue picture"])
    losses = [record["loss"] for record in run.metrics() if "loss" in record]
    written = json.dumps({"sentences": sentences.tolist(), "losses": losses}, indent=1)
    Path("expected_aligned.json").write_text(written + "\n")
    _shorten(run.path)


def _shorten(run: Path) -> None:
    """Two steps are left to train, and nothing is about this machine."""
    environment = run / "environment.json"
    environment.write_text(environment.read_text().replace(platform.platform(), platform.system()))
    shutil.rmtree(run / "checkpoints/step-00000004")
    os.unlink(run / "checkpoints/last")  # noqa: PTH108 - a link, which not every checkout keeps


if __name__ == "__main__":
    make(Path(sys.argv[1]))
