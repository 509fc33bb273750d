"""`asterism reconstruct`: images from concepts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Device, Images, Model, WeightsOption, model_of
from asterism.cli.printing import say
from asterism.errors import UserError


@app.command()
def reconstruct(
    model: Model,
    images: Images,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the pictures.")] = Path(
        "reconstructions"
    ),
    drop: Annotated[
        str, typer.Option(metavar="TOKEN,...", help="Leave these concepts out; the others share their area.")
    ] = "",
    move: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKEN:DY,DX", help="Move a concept down and right, in patches (negative: up, left)."),
    ] = None,
    swap: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Replace each IMAGE's concepts by those of this image.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The tokenizer whose codes the model predicts, if its file does not contain it."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing pictures in --out.")] = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Reconstruct images from their concepts, unchanged or edited.

    Writes NAME.reconstruction.png and, with an edit, NAME.edited.png. `asterism concepts` shows the number of each
    concept. Edits can be combined: first --swap, then --drop, then every --move.

    \b
    Examples:
      asterism reconstruct runs/first cat.jpg --out made
      asterism reconstruct runs/first cat.jpg --drop 3,5
      asterism reconstruct runs/first cat.jpg --move 3:0,2 --move 5:-1,0
      asterism reconstruct runs/first cat.jpg --swap dog.jpg
    """
    from asterism import api

    moves = dict(_move(text) for text in move or [])
    if len(moves) < len(move or []):
        raise UserError(f"--move {' --move '.join(move or [])} moves a concept twice; give one --move per concept")
    for path in api.reconstruct(
        model_of(model, weights_option),
        images,
        out,
        drop=_tokens(drop),
        move=moves,
        swap=swap,
        tokenizer=tokenizer,
        overwrite=overwrite,
        device=device,
    ):
        say(path)


def _tokens(text: str) -> list[int]:
    """Concept numbers, from "3,5"."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"cannot read --drop {text}; give concept numbers, for example 3,5") from None


def _move(text: str) -> tuple[int, tuple[int, int]]:
    """A concept and its shift down and right, from "3:-1,2"."""
    token, _, shift = text.partition(":")
    try:
        down, right = (int(part) for part in shift.split(","))
        return int(token), (down, right)
    except ValueError:
        raise UserError(f"cannot read --move {text}; give TOKEN:DY,DX in patches, for example 3:-1,2") from None
