"""Size, largest difference and speed of every export, compared with the same encoder in PyTorch, in one run.

    python benchmarks/export.py [--model RUN|FILE] [--targets onnx,hf] [--dtypes float32] [--images 8] [--rounds 9]

Without --model, an untrained STELLAR-like network of the recipes' CPU size: 64 pixels, patches of 8, 192 channels, 4
blocks, 8 concepts. Rounds alternate between PyTorch and the exports, and the best round of each counts, because other
programs may use the same cores. "speed" is the time of PyTorch over that of the export: above 1 the export is faster.
All run on the CPU with the given number of threads, on images of the encoder's size. The difference is the largest of
any output, over the encoder's size and, where the export takes it, one that is larger and not square.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.weights.load import load_encoder
from asterism.tools.export.export import DTYPES, TARGETS, export_encoder


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    encoder = load_encoder(options.model).eval() if options.model else small_encoder()
    images = torch.rand(options.images, 3, encoder.image_size, encoder.image_size)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    print(
        f"{encoder.backbone.architecture.name}: {parameters / 1e6:.2f} M parameters, {encoder.image_size} pixels, "
        f"{options.images} images, {options.threads} thread(s), best of {options.rounds} rounds"
    )
    print("| target | dtype | size | largest difference | speed |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        rows, models = [], {}
        for target in options.targets.split(","):
            for dtype in options.dtypes.split(","):
                folder = Path(name) / f"{target}-{dtype}"
                try:
                    exported = export_encoder(encoder, TARGETS[target], folder, DTYPES[dtype])
                except UserError as error:
                    print(f"| {target} | {dtype} | {error} | | |")
                    continue
                size = sum(bytes_ for file, bytes_ in exported.files.items() if file != "README.md")
                rows.append((target, dtype, size, exported.difference))
                models[target, dtype] = TARGETS[target].open(folder)
        times = best_times(encoder, models, images, options.rounds)
        for target, dtype, size, difference in rows:
            speed = times[None] / times[target, dtype]
            print(f"| {target} | {dtype} | {size / 1e6:.2f} MB | {difference:.1e} | {speed:.2f} |")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="by default an untrained network")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--dtypes", default="float32,float16,bfloat16")
    parser.add_argument("--images", type=int, default=8, help="images per batch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def small_encoder() -> Encoder:
    torch.manual_seed(0)
    config = BackboneConfig(
        name="vit_small_patch16_224", image_size=64, patch_size=8, dim=192, depth=4, registers=8, init="width"
    )
    backbone = build_backbone(config)
    return ConceptEncoder(backbone, Localization(backbone.dim)).eval()


@torch.inference_mode()
def best_times(
    encoder: Encoder,
    models: dict[tuple[str, str], Callable[[Tensor], object]],
    images: Tensor,
    rounds: int,
) -> dict[tuple[str, str] | None, float]:
    """Seconds for the batch, by export; None is PyTorch."""
    runs: dict[tuple[str, str] | None, Callable[[Tensor], object]] = {
        None: lambda pixels: encoder.named_outputs(encoder.normalise(pixels)),
        **models,
    }
    for run in runs.values():
        for _ in range(3):  # TorchScript optimises during its first calls
            run(images)
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for key, run in runs.items():
            start = time.perf_counter()
            run(images)
            best[key] = min(best[key], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
