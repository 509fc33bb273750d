"""The model card, README.md: what the model is, what it was trained on, its scores, how to use it, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from asterism.evals.result import Result, read_results
from asterism.finetuning.model import FinetunedModel
from asterism.finetuning.task import Task
from asterism.nn.encoder import Encoder
from asterism.tools.export.target import Target, Written
from asterism.train.kind import kind_of

FILE = "README.md"
_SHOWN = 30  # classes that are listed
_UNKNOWN = "unknown"  # one of the Hugging Face Hub's words for licences


@dataclass(frozen=True)
class Origin:
    """Where an encoder comes from, as far as it is known."""

    name: str
    method: str | None = None
    data: str | None = None
    results: tuple[Result, ...] = ()


def origin_of(name: str, run: Path | None) -> Origin:
    """Of a run: its method, data and every score in its `eval` folder. Of anything else only the name.

    The data and other models are named as their readers may see them, without their places on this machine.
    """
    if run is None:
        return Origin(Path(name).name)
    opened = kind_of(run).open_run(run)
    results = tuple(read_results(run / "eval"))
    return Origin(run.resolve().name, opened.origin, Path(opened.data_path()).name, results)


def model_card(
    origin: Origin, encoder: Encoder, target: Target, written: Written, dtype: torch.dtype, license_name: str | None
) -> str:
    notes = "".join(f"- {note}\n" for note in written.notes)
    task = encoder.task if isinstance(encoder, FinetunedModel) else None
    whole = task if written.has_head else None  # the task, if its head is there
    parts = [
        _header(origin, whole, target, license_name),
        f"# {origin.name}\n",
        f"{_kind(task, whole)}, exported by Asterism {metadata.version('asterism')}.\n",
        _details(origin, encoder, whole, dtype, license_name),
        f"## How to use\n\n{written.usage}",
        f"## What differs from the original\n\n{notes}" if notes else None,
        _scores(origin.results),
        _LIMITS if whole is None else _TASK_LIMITS,
    ]
    return "\n".join(part for part in parts if part)


def _kind(task: Task | None, whole: Task | None) -> str:
    if task is None:
        return "An image encoder that was pretrained without labels"
    purpose = task.purpose.replace("-", " ")
    if whole is None:
        return f"The image encoder of a model that was fine-tuned for {purpose}"
    return f"A model for {purpose}: a pretrained image encoder, fine-tuned with labels"


def _header(origin: Origin, whole: Task | None, target: Target, license_name: str | None) -> str:
    purpose = "image-feature-extraction" if whole is None else whole.purpose
    tags = ["asterism", "self-supervised-learning", "feature-extraction", *([origin.method] if origin.method else [])]
    listed = "\n".join(f"- {tag}" for tag in tags)
    return f"""\
---
license: {license_name or _UNKNOWN}
library_name: {target.library}
pipeline_tag: {purpose}
tags:
{listed}
---
"""


def _details(origin: Origin, encoder: Encoder, whole: Task | None, dtype: torch.dtype, license_name: str | None) -> str:
    backbone = encoder.backbone
    parameters = sum(parameter.numel() for parameter in backbone.network.parameters())
    values = {
        "method": origin.method or "not known: the weights come from a file, not from a run",
        "training data": origin.data or "not known",
        "optimiser steps": "not known" if encoder.step is None else f"{encoder.step:,}",
        "network": f"{backbone.architecture.name}, {parameters / 1e6:.1f} M parameters, {backbone.dim} channels",
        "images": f"{encoder.image_size}×{encoder.image_size} pixels, patches of {encoder.patch_size}",
        "preprocessing": f"{preprocessing_of(encoder, whole)}; pixels / 255, mean {_listed(encoder.mean)}, "
        f"std {_listed(encoder.std)}",
        "precision": str(dtype).removeprefix("torch."),
        "licence": license_name or "not stated: ask the authors before you use the weights",
    }
    if whole is not None:
        values["classes"] = f"{len(whole.classes)}: {', '.join(whole.classes[:_SHOWN])}"
        values["classes"] += " …" if len(whole.classes) > _SHOWN else ""
    rows = "".join(f"| {name} | {value} |\n" for name, value in values.items())
    return f"## Model\n\n| | |\n|---|---|\n{rows}"


def preprocessing_of(encoder: Encoder, task: Task | None) -> str:
    """What `predict` of a task, or else `encode`, does to an image before it is normalised."""
    if task is not None:
        return task.preprocessing
    return f"shorter side to {encoder.image_size} (bicubic, antialiased), then the centre square"


def _scores(results: Sequence[Result]) -> str:
    if not results:
        return "## Scores\n\nNone were recorded for this model. Evaluate it on data like yours before you rely on it.\n"
    others = list(dict.fromkeys(name for result in results for name in result.baselines))
    lines = [["protocol", "data", "images", "metric", "this model", *(Path(name).name for name in others)]]
    lines.append(["---"] * len(lines[0]))
    for result in results:
        for name, value in result.values.items():
            compared = (result.baselines.get(other, {}).get(name) for other in others)
            numbers = ("" if each is None else f"{each:.2f}" for each in (value, *compared))
            lines.append([result.protocol, Path(result.test.name).name, f"{result.test.images:,}", name, *numbers])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    notes = "".join(f"- {note}\n" for note in dict.fromkeys(note for result in results for note in result.notes))
    without = "" if others else "\nNothing was measured to compare with: `asterism evaluate --baselines` does.\n"
    return f"## Scores\n\n{table}{without}" + (f"\n{notes}" if notes else "")


_LIMITS = """\
## Intended use and limits

Features for search, clustering, k-NN and linear classification, segmentation from few labels, and as a start for
fine-tuning. The model has no classes and makes no decisions. It describes images like its training data best; what is
rare there is described poorly, and biases of that data are in the features. Check it on your own images, and for every
group of people or things that matters to you, before you use it.
"""


_TASK_LIMITS = """\
## Intended use and limits

The model chooses among its classes: an image that shows none of them still gets one of them. It is right
most often on images like those it was trained on. Check it on your own images, and for every group of people or things
that matters to you, before you use it.
"""


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
