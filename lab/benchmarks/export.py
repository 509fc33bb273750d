"""Size, largest difference and speed of every export, compared with the same encoder in PyTorch, in one run.

    python -m lab.benchmarks.export [--model RUN|FILE] [--kinds encoder,upernet] [--targets onnx,hf] [--dtypes float32]
        [--images 8] [--rounds 9]

Without --model, untrained networks of the recipes' CPU size: 64 pixels, patches of 8, 192 channels, 4 blocks. The kind
`encoder` is STELLAR-like, with 8 concepts; the others are fine-tuned models with this head. Rounds alternate between
PyTorch and the exports, and the best round of each counts, because other programs may use the same cores. "speed" is
the time of PyTorch over that of the export: above 1 the export is faster. All run on the CPU with the given number of
threads, on images of the encoder's size. The difference is the largest of any output, over the encoder's size and,
where the export takes it, another one that is not square.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import asterism
from asterism.errors import UserError
from asterism.extras.detection.detect import Detect, DetectConfig
from asterism.finetuning.model import FinetunedModel
from asterism.finetuning.segmentation.segment import Segment, SegmentConfig
from asterism.finetuning.task import Start
from asterism.nn.backbone import Backbone, BackboneConfig, build_backbone
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD
from asterism.tools.export.export import DTYPES, TARGETS, export_encoder

_RCNN = {"channels": 64, "hidden": 256, "test_proposals": 100, "score_threshold": 0.0, "anchor_scale": 2.0}
HEADS: dict[str, dict[str, object]] = {
    "linear4": {},
    "upernet": {"channels": 64},
    "fpn": {"pyramid_channels": 64, "channels": 32},
    "mask-transformer": {},
    "yolos": {"tokens": 50},
    "faster-rcnn": _RCNN,
    "mask-rcnn": {**_RCNN, "mask_channels": 64},
    "cascade-mask-rcnn": {**_RCNN, "mask_channels": 64},
}


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    if options.model:
        measure(asterism.load(options.model).eval(), options)
    for kind in () if options.model else options.kinds.split(","):
        print(kind)
        measure(small_encoder() if kind == "encoder" else small_model(kind), options)


def measure(encoder: Encoder, options: argparse.Namespace) -> None:
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
    parser.add_argument("--kinds", default="encoder", help="encoder, or heads of segmentation and detection")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--dtypes", default="float32,float16,bfloat16")
    parser.add_argument("--images", type=int, default=8, help="images per batch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def small_encoder() -> Encoder:
    backbone = small_backbone(registers=8)
    return ConceptEncoder(backbone, Localization(backbone.dim)).eval()


def small_model(head: str) -> Encoder:
    """A fine-tuned model with five classes and a head of modest width."""
    begin = Start(small_backbone(), IMAGENET_MEAN, IMAGENET_STD, 64, tuple("abcde"))
    settings = {"name": head, **HEADS[head]}
    if head in ("linear4", "upernet", "fpn", "mask-transformer"):
        return FinetunedModel(Segment(SegmentConfig.parse({"head": settings}), begin)).eval()
    return FinetunedModel(Detect(DetectConfig.parse({"head": settings}), begin)).eval()


def small_backbone(registers: int = 0) -> Backbone:
    torch.manual_seed(0)
    config = BackboneConfig(
        name="vit_small_patch16_224", image_size=64, patch_size=8, dim=192, depth=4, registers=registers, init="width"
    )
    return build_backbone(config)


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
        for _ in range(3):  # the first calls are slower
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
