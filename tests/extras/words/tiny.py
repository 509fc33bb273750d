"""The smallest sensible alignment: an untrained encoder of coloured pictures, and sentences that name their colours."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import asterism
from asterism.extras.words.run import AlignedRun
from tests.concept_samples import concept_encoder

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 60), "red": (220, 30, 20), "white": (235, 235, 235)}
SETTINGS = [
    *["text.dim=16", "text.depth=1", "text.heads=2", "data.workers=0", "data.held_out=0.2", "optim.lr=1e-2"],
    *["trainer.batch_size=8", "trainer.accelerator=cpu", "trainer.devices=1", "monitor.tensorboard=false"],
    *["monitor.log_every=1"],
]


def captions(folder: Path, each: int = 6) -> Path:
    """A JSONL file about pictures of one colour, each with two captions, a negative and a pair."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    lines = []
    for place, (name, colour) in enumerate(COLOURS.items()):
        for number in range(each):
            pixels = np.clip(np.array(colour) + draw.integers(-20, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}{number}.png")
            other = list(COLOURS)[(place + 1) % len(COLOURS)]
            line = {
                "image": f"{name}{number}.png",
                "captions": [f"a {name} picture", f"{name} number {number}"],
                "negatives": [{"text": f"a {other} picture", "kind": "colour"}],
                "pair": f"{place // 2}-{number}",
                "category": "colour",
            }
            lines.append(json.dumps(line))
    file = folder / "captions.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def encoder_file(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return concept_encoder(seed=seed).save(folder / "encoder.safetensors").parent


def aligned(folder: Path, *changes: str, name: str = "run", **more: Any) -> AlignedRun:
    """A run on the data in this folder, which is made if it is missing."""
    data, source = folder / "data" / "captions.jsonl", folder / "source"
    if not data.exists():
        captions(data.parent)
        encoder_file(source)
    return asterism.align(source, data, out=folder / name, overrides=[*SETTINGS, *changes], **more)
