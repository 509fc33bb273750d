"""Small videos with masks for tests: a red square and a blue one that move over a grey background."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from asterism.images.masks import save_mask

SIZE = (24, 32)


def frame_and_mask(number: int, size: tuple[int, int] = SIZE) -> tuple[Tensor, Tensor]:
    """The picture [3, h, w] and the mask [h, w] of one frame."""
    image = torch.full((3, *size), 120, dtype=torch.uint8)
    mask = torch.zeros(size, dtype=torch.int64)
    for value, (top, left), colour in ((1, (2, 2 + number), (220, 30, 30)), (2, (14, 20 - number), (30, 40, 220))):
        image[:, top : top + 8, left : left + 8] = torch.tensor(colour, dtype=torch.uint8)[:, None, None]
        mask[top : top + 8, left : left + 8] = value
    return image, mask


def write_frames(folder: Path, frames: int, size: tuple[int, int] = SIZE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(frames):
        image = frame_and_mask(number, size)[0]
        Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(folder / f"{number:05d}.jpg", quality=95)
    return folder


def write_davis(root: Path, videos: dict[str, int]) -> Path:
    for name, frames in videos.items():
        write_frames(root / "JPEGImages" / "480p" / name, frames)
        masks = root / "Annotations" / "480p" / name
        masks.mkdir(parents=True)
        for number in range(frames):
            save_mask(frame_and_mask(number)[1], masks / f"{number:05d}.png")
    (root / "ImageSets" / "2017").mkdir(parents=True)
    (root / "ImageSets" / "2017" / "val.txt").write_text("\n".join(videos) + "\n")
    return root
