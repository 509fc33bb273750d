"""The smallest sensible run of every method: two blocks, 16-pixel scenes, batches of 8."""

from functools import partial
from pathlib import Path
from typing import Any

from asterism.train import engine
from asterism.train.pretraining import PRETRAINING
from asterism.train.recipe import Recipe

# A teacher that differs from the students in all respects: 24 pixels, patches of 8, 24 channels, one block, 2 heads,
# mean (0.4, 0.5, 0.6), deviation (0.2, 0.25, 0.3); random weights.
TEACHER = Path(__file__).with_name("teacher.safetensors")

METHODS: dict[str, dict[str, Any]] = {
    "cribo": {
        "objects": {"clusters": 4, "rounds": 2},
        "bank": {"images": 24},
        "object_batch": "all",
        "out_dim": 32,
        "object_out_dim": 24,
        "hidden_dim": 32,
        "bottleneck_dim": 16,
    },
    "dino": {"out_dim": 32, "hidden_dim": 32, "bottleneck_dim": 16, "local_views": 2, "freeze_last_layer": 1},
    "distill": {"teacher": str(TEACHER), "queue": {"size": 24, "teacher_temp": 0.1}},
    "flsl": {"out_dim": 32, "hidden_dim": 32, "bottleneck_dim": 16},
    "ibot": {"out_dim": 32, "hidden_dim": 32, "bottleneck_dim": 16, "local_views": 2, "freeze_last_layer": 1},
    "mae": {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2},
    "sop": {
        "hidden_dim": 32,
        "embedding_dim": 16,
        "local_views": 2,
        "images": {"memory": 48, "count": 12, "neighbours": 2, "tasks": 2},
        "patches": {"memory": 32, "count": 8},
    },
    "stellar": {
        "tokens": 4,
        "reconstruction": {"target": "pixels", "decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2},
        "masked_views": 2,
        "mask_ratio": 0.6,
        "local_views": 2,
        "local_size": 8,
        "vocabulary": {"prototypes": 24, "hidden_dim": 32, "bottleneck_dim": 16},
        "class_vocabulary": {"prototypes": 24, "hidden_dim": 32, "bottleneck_dim": 16},
        "warmup": {"share": 0.5, "momentum": 0.99, "mask_ratio": 0.5},
    },
    "vq": {"vocabulary": 16, "code_dim": 4, "decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2},
}


_BACKBONES: dict[str, dict[str, Any]] = {"flsl": {"class_token": False, "positions": "sincos"}}

pretrain, resume = partial(engine.start, PRETRAINING), partial(engine.resume, PRETRAINING)


class Killed(BaseException):
    """Simulates SIGKILL: our code does not catch it, so nothing is saved."""


def tiny_recipe(name: str = "dino", **sections: dict[str, Any]) -> Recipe:
    """The tiny recipe of a method, with changes by section."""
    values: dict[str, dict[str, Any]] = {
        "method": {"name": name, **METHODS[name]},
        "backbone": {
            "name": "vit_tiny_patch16_224",
            "image_size": 16,
            "patch_size": 4,
            "dim": 32,
            "depth": 2,
            "heads": 2,
            "drop_path": 0.2,
            **_BACKBONES.get(name, {}),
        },
        "data": {"path": "scenes:size=16,count=40", "workers": 0},
        "optim": {"lr": 0.05, "warmup_epochs": 1, "clip": 3.0},
        "trainer": {"steps": 6, "batch_size": 8, "accelerator": "cpu"},
        "monitor": {"log_every": 1, "knn": None, "tensorboard": False},
    }
    for section, changes in sections.items():
        values[section] = values.get(section, {}) | changes
    return Recipe.parse(values)
