"""Export of an encoder: written to a temporary folder, opened again, compared, and only then put in place."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from asterism.errors import MissingExtra, UserError, unknown
from asterism.files import filling
from asterism.nn.encoder import Encoder
from asterism.plugins import plugins
from asterism.tools.export.hf_folder import HF
from asterism.tools.export.model_card import FILE as CARD
from asterism.tools.export.model_card import Origin, model_card
from asterism.tools.export.onnx_file import ONNX
from asterism.tools.export.own_file import SAFETENSORS
from asterism.tools.export.target import Model, Target, Written
from asterism.tools.export.timm_folder import TIMM
from asterism.tools.output_folder import check_folder

TARGETS: Mapping[str, Target] = {target.name: target for target in (TIMM, HF, ONNX, SAFETENSORS)}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_TOLERANCE = 1e-4  # largest difference of a float32 export; features are of order 1 after the final norm
_FILES = frozenset({CARD, *(file for target in TARGETS.values() for file in target.files)})


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its outputs are from the encoder's."""

    folder: Path
    files: Mapping[str, int]  # bytes by name
    # The largest over all outputs, at two sizes if it takes any; None: its library is not installed.
    difference: float | None
    notes: tuple[str, ...]

    def summary(self) -> str:
        lines = [f"{self.folder / name}  {_size(size)}" for name, size in self.files.items()]
        if self.difference is not None:
            lines.append(f"Largest difference from the model: {self.difference:.1e}")
        return "\n".join(lines)

    def warnings(self) -> list[str]:
        return [f"Note: {note}" for note in self.notes]


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def target_named(name: str) -> Target:
    if name in TARGETS:
        return TARGETS[name]
    if name not in (added := plugins("exports")):
        raise unknown("export target", name, [*TARGETS, *added])
    found: Target = added[name].load()
    return found


def dtype_named(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    return DTYPES[name]


def check_out(out: Path, overwrite: bool, source: Path | None) -> Path:
    """Refuse a folder that must not be written to. source: the run or file that is exported, if it is on disk."""
    check_folder(out, overwrite)
    if (out / "config.yaml").is_file() and (out / "environment.json").is_file():
        raise UserError(f"{out} is a run; choose another --out, for example {out.with_name(out.name + '-export')}")
    if source is not None and source.exists():
        folder = source if source.is_dir() else source.parent
        if folder.resolve() == out.resolve():
            raise UserError(f"{out} holds the weights that are exported; choose another --out")
    return out


def export_encoder(
    encoder: Encoder,
    target: Target,
    out: Path,
    dtype: torch.dtype = torch.float32,
    origin: Origin | None = None,
    license_name: str | None = None,
) -> Exported:
    """Write the encoder for another program. Files of an earlier export are replaced; on an error nothing changes."""
    if next(encoder.backbone.network.parameters(), None) is None:
        raise UserError(
            "raw pixels are not a network and cannot be exported; give a run, a weights file or a timm name"
        )
    encoder = copy.deepcopy(encoder).cpu().float().eval()
    with filling(out) as folder:
        written = target.write(encoder, folder, dtype)
        difference, unchecked = _compared(encoder, target, folder, written, dtype)
        card = model_card(origin or Origin("encoder"), encoder, target, written, dtype, license_name)
        (folder / CARD).write_text(card, encoding="utf-8")
        files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
        for stale in (_FILES | {*target.files}) - files.keys():
            (out / stale).unlink(missing_ok=True)
    return Exported(out, files, difference, (*written.notes, *unchecked))


def _compared(
    encoder: Encoder, target: Target, folder: Path, written: Written, dtype: torch.dtype
) -> tuple[float | None, tuple[str, ...]]:
    """The largest difference of any output from the encoder's, and a note on what the comparison does not cover.

    There is none if the library that opens the export is not installed.
    """
    try:
        model = target.open(folder)
    except MissingExtra:
        return None, (f"not compared: {target.library} is not installed",)
    pairs = [_outputs(encoder, model, *size) for size in written.sizes]
    found = largest([largest_difference(*pair) for pair in pairs])
    precision = str(dtype).removeprefix("torch.")
    if not math.isfinite(found):
        raise UserError(f"in {precision} some features are infinite or undefined; choose another --dtype")
    if dtype == torch.float32 and found > _TOLERANCE:
        raise UserError(
            f"the exported model would differ from the encoder by {found:.1e} (more than {_TOLERANCE:g}), so nothing "
            f"was written; choose another --to than {target.name}"
        )
    if all("boxes" in exported and not (own["scores"] > 0).any() for own, exported in pairs):
        return found, ("the detector finds nothing in the trial images, and the export agrees; no boxes were compared",)
    return found, ()


@torch.no_grad()
def _outputs(encoder: Encoder, model: Model, height: int, width: int) -> tuple[Outputs, Outputs]:
    """The outputs of the encoder and of the exported model for the trial images."""
    images = trial_images(height, width)
    found, pixels = model(images), encoder.normalise(images)
    # A format without a place for a task's head has the features alone, which the task may not return.
    features_only = found.keys() <= {"cls", "patches"}
    return (Encoder.named_outputs(encoder, pixels) if features_only else encoder.named_outputs(pixels)), found


def trial_images(height: int, width: int) -> Float[Tensor, "2 3 h w"]:
    """Noise, and soft spots, in which detectors find more."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.rand(1, 3, height, width, generator=draw)
    spots = F.interpolate(torch.rand(1, 3, 5, 7, generator=draw), (height, width), mode="bicubic").clamp(0, 1)
    return torch.cat([noise, spots])


_TIES = 0.02  # share of labels or detections that may differ
_EVERYTHING = 1.0  # the difference of outputs that do not correspond at all

Outputs = Mapping[str, Tensor]


def largest_difference(expected: Outputs, found: Outputs) -> float:
    """Of all outputs that were found; logits relative to the largest, boxes relative to the farthest edge."""
    if "boxes" in found:
        images = range(len(found["boxes"]))
        differences = [_of_detections(_of_image(expected, image), _of_image(found, image)) for image in images]
    else:
        differences = [_of_output(name, expected[name], output) for name, output in found.items()]
    return largest(differences)


def largest(differences: Sequence[float]) -> float:
    """Unlike `max`, not a number if one of them is not."""
    return math.nan if any(math.isnan(each) for each in differences) else max(differences)


def _of_output(name: str, expected: Tensor, found: Tensor) -> float:
    if not found.is_floating_point():
        return _EVERYTHING if float((expected != found).float().mean()) > _TIES else 0.0
    scale = expected.abs().max().clamp_min(1) if name == "logits" else 1
    return float(((found.float() - expected).abs() / scale).max())


def _of_image(outputs: Outputs, image: int) -> Outputs:
    return {name: output[image] for name, output in outputs.items()}


def _of_detections(expected: Outputs, found: Outputs) -> float:
    """For every detection of an image the nearest one of the same class, in position, size and score."""
    ours, theirs = expected["scores"] > 0, found["scores"] > 0
    tolerated = int(_TIES * int(ours.sum()))
    if abs(int(ours.sum()) - int(theirs.sum())) > tolerated:
        return _EVERYTHING
    if not ours.any():
        return 0.0
    distances = torch.cdist(_rows(expected, ours, expected), _rows(found, theirs, expected), p=float("inf"))
    nearest, place = distances.min(dim=1)
    if "masks" in found:
        masks = expected["masks"][ours] - found["masks"].float()[theirs][place]
        nearest = torch.maximum(nearest, masks.abs().flatten(1).amax(dim=1))
    return float(nearest.sort().values[-1 - tolerated])


def _rows(outputs: Outputs, real: Tensor, scaled_like: Outputs) -> Float[Tensor, "n 6"]:
    edge = scaled_like["boxes"].max().clamp_min(1)
    columns = [outputs["boxes"].float() / edge, outputs["scores"].float()[:, None], outputs["labels"].float()[:, None]]
    return torch.cat(columns, dim=1)[real]
