"""Predicted masks as files: `masks/` for programs, tables of the areas of classes, and the colours of the classes."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from jaxtyping import UInt8
from torch import Tensor

from asterism.csv_text import comma_separated
from asterism.files import write_text
from asterism.finetuning.segmentation.maps import Segmentation, class_colours
from asterism.images.masks import save_mask


class MaskFolder:
    """Writes an indexed PNG per image at once, and collects the areas of the classes."""

    def __init__(self, folder: Path, classes: tuple[str, ...]) -> None:
        self._folder, self._classes = folder, classes
        self._colours = class_colours(classes)
        self._rows: list[dict[str, Any]] = []
        self._used: set[str] = set()
        (folder / "masks").mkdir()

    def add(self, key: str, image: UInt8[Tensor, "3 h w"], prediction: Segmentation) -> None:
        place = self._place(key)
        path = self._folder / "masks" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        save_mask(prediction.mask, path, self._colours)
        pixels = prediction.mask.numel()
        areas = [
            {"class": name, "pixels": round(share * pixels), "share": round(share, 6)}
            for name, share in prediction.areas.items()
        ]
        self._rows.append({"image": key, "mask": f"masks/{place}", "areas": areas})

    def close(self) -> list[Path]:
        areas = [[row["image"], *area.values()] for row in self._rows for area in row["areas"]]
        classes = [
            {"number": number, "class": name, "colour": "#{:02x}{:02x}{:02x}".format(*colour)}
            for number, (name, colour) in enumerate(zip(self._classes, self._colours, strict=True))
        ]
        content = {"classes": classes, "images": self._rows}
        written = {
            "predictions.csv": comma_separated([["image", "class", "pixels", "share"], *areas]),
            "predictions.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n",
        }
        for name, each in written.items():
            write_text(self._folder / name, each)
        return [*(self._folder / name for name in written), self._folder / "masks"]

    def _place(self, key: str) -> str:
        """The path of a mask: that of its image, as PNG; the second image of one stem keeps its suffix in it."""
        place = PurePosixPath(key).with_suffix(".png").as_posix()
        if place in self._used:
            place = f"{key}.png"
        self._used.add(place)
        return place
