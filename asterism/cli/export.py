"""`asterism export`: models for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import AnyModel, WeightsOption, model_of
from asterism.cli.printing import say, warn


@app.command()
def export(
    model: AnyModel,
    to: Annotated[str, typer.Option("--to", metavar="onnx|torchscript|hf|timm|safetensors", help="The format.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new folder.")] = Path("exported"),
    dtype: Annotated[
        str, typer.Option(metavar="float32|float16|bfloat16", help="Precision of the weights.")
    ] = "float32",
    license_name: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="For the model card, for example apache-2.0.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export in --out.")] = False,
    weights_option: WeightsOption = None,
) -> None:
    """Write a model for other programs: onnxruntime, torch alone, Hugging Face transformers, timm.

    onnx and torchscript take images in [0, 1] and normalise them, for any number of images and, for ViTs, of any size.
    hf and timm folders open with AutoModel and timm.create_model. safetensors is our own file. The export is opened
    again and compared with the model before it is put in place. It includes a model card with data, method and scores.

    \b
    Examples:
      asterism export runs/first --to onnx --out first-onnx
      asterism export runs/first --to hf --out first-hf --license apache-2.0
      asterism export runs/first --to torchscript --dtype float16 --out first-half
    """
    from asterism import api

    chosen = model_of(model, weights_option)
    exported = api.export(chosen, to, out, dtype=dtype, license=license_name, overwrite=overwrite)
    for name, size in exported.files.items():
        say(f"{exported.folder / name}  {_megabytes(size)}")
    if exported.difference is not None:
        say(f"Largest difference from the model: {exported.difference:.1e}")
    for note in exported.notes:
        warn(f"Note: {note}", "yellow")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
