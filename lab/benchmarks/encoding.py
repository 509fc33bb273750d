"""Images per second of feature extraction on a CPU: threads of this process, or processes that read and encode.

    python -m lab.benchmarks.encoding --model runs/first --data cifar10/ --images 20000 --rounds 3
    python -m lab.benchmarks.encoding --model vit_small_patch16_224 --data tinyimagenet/ --images 500 --batch-size 16

Both forms alternate; the best round of each counts. Vectors are computed anew in every round, and must be equal up to
rounding.
"""

from __future__ import annotations

import argparse
import time

import timm
import torch

import asterism
from asterism.data import Subset, open_source
from asterism.features.encoding import encoding_processes, helpers
from asterism.features.extract import extract_pooled
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a run, or a name of timm for a network with initial weights")
    parser.add_argument("--data", required=True, help="labelled images")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    encoder = network(options.model)
    source = open_source(options.data)
    source = Subset(source, range(min(options.images, len(source))))
    processes = encoding_processes(encoder, "auto", len(source), options.batch_size)
    if not processes:
        parser.error("no processes would encode here: one core, few images or a large network")
    forms = {
        f"{torch.get_num_threads()} threads, {helpers('auto', len(source))} reading": helpers("auto", len(source)),
        f"{processes} processes": "auto",
    }
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    vectors = {}
    for _ in range(options.rounds):
        for name, workers in forms.items():
            before = time.perf_counter()
            found = extract_pooled(
                encoder, source, "cls", resize=encoder.image_size, batch_size=options.batch_size, workers=workers
            )
            seconds[name].append(time.perf_counter() - before)
            vectors[name] = found.features
    first, second = vectors.values()
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    slow, fast = (min(times) for times in seconds.values())
    for name, times in seconds.items():
        print(f"{name:24} {len(source) / min(times):8.1f} images/s  (rounds: {', '.join(f'{t:.1f} s' for t in times)})")
    print(f"{slow / fast:.2f} ×")


def network(name: str) -> Encoder:
    if timm.is_model(name):
        torch.manual_seed(0)
        return Encoder(build_backbone(BackboneConfig(name=name))).eval()
    return asterism.load(name)


if __name__ == "__main__":
    main()
