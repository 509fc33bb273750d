"""How well a model's concepts describe held-out images, compared with rank-r PCA of the same patches.

    python -m lab.benchmarks.stellar_rank runs/r4 runs/r8 runs/r16 --data scenes:size=64,count=1000 --split test

A model with r concepts reconstructs an image from r tokens and their share of each of n patches (V = L S). Two
baselines describe the n patches of pixels by a mean and r components:
  own      fitted to each image, which has to store them: r vectors and n × r numbers, the shapes of S and L
  shared   fitted to the training images and the same for all: an image stores n × r numbers
PSNR in dB: the mean over images, and in brackets that of the mean squared error over all images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data import Source, Subset, evaluation_batches, open_source
from asterism.errors import UserError
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.weights.load import load_encoder
from asterism.ops.image_quality import psnr
from asterism.ops.patches import patchify, unpatchify
from asterism.train.run import open_run
from asterism.viz.concepts import at_size

Images = Float[Tensor, "b 3 h w"]


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    print(f"{'run':24}{'r':>4}{'images':>8}{'model':>16}{'own PCA':>16}{'shared PCA':>16}")
    for run in options.runs:
        encoder = load_encoder(run).eval()
        if not isinstance(encoder, ConceptEncoder):
            raise UserError(f"{run} has no concepts; give runs of `asterism pretrain stellar`")
        data = options.data or open_run(run).config["data"]["path"]
        held_out = first(open_source(data, options.split), options.images)
        training = first(open_source(data, "train"), options.fitted)
        scores = compare(encoder, held_out, training)
        shown = "".join(f"{values.mean():9.2f} ({pooled(values):.2f})" for values in scores.values())
        print(f"{run!s:24}{encoder.backbone.registers:4}{len(held_out):8}{shown}", flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", help="by default the training data of each run")
    parser.add_argument("--split", default="test", help="held-out part")
    parser.add_argument("--images", type=int, default=1000, help="held-out images at most")
    parser.add_argument("--fitted", type=int, default=2000, help="training images for the shared components at most")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def first(source: Source, count: int) -> Source:
    return Subset(source, range(min(count, len(source))))


@torch.no_grad()
def compare(encoder: ConceptEncoder, held_out: Source, training: Source) -> dict[str, Float[Tensor, " n"]]:
    """PSNR of every held-out image, by description."""
    rank, side = encoder.backbone.registers, encoder.backbone.patch_size
    basis = principal_basis(torch.cat([patchify(x, side).flatten(0, 1) for x in pictures(training, encoder)]), rank)
    scores: dict[str, list[Tensor]] = {"model": [], "own": [], "shared": []}
    for images in pictures(held_out, encoder):
        features = encoder.encode(images)
        made = encoder.reconstruct(features.sparse, features.where).cpu()
        patches = patchify(images, side)
        described = {
            "model": at_size(made, images.shape[-1]),
            "own": unpatchify(rank_approximation(patches, rank), features.grid, side).clamp(0, 1),
            "shared": unpatchify(described_by(patches, *basis), features.grid, side).clamp(0, 1),
        }
        for name, pixels in described.items():
            scores[name].append(psnr(pixels, images))
    return {name: torch.cat(values) for name, values in scores.items()}


def pictures(source: Source, encoder: ConceptEncoder) -> Iterator[Images]:
    """Images in [0, 1] as the encoder gets them: the shorter side at its size, the centre square."""
    for batch in evaluation_batches(source, encoder.image_size, resize=encoder.image_size, workers=0):
        yield batch.images.float() / 255


def pooled(decibels: Float[Tensor, " n"]) -> float:
    """PSNR of the mean error."""
    return float(-10 * (10 ** (-decibels / 10)).mean().log10())


def rank_approximation(rows: Float[Tensor, "*b m d"], rank: int) -> Float[Tensor, "*b m d"]:
    """Each matrix of rows, approximated by its own mean and its own first `rank` components."""
    mean = rows.mean(dim=-2, keepdim=True)
    u, s, vh = torch.linalg.svd(rows - mean, full_matrices=False)
    return mean + (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]


def principal_basis(rows: Float[Tensor, "m d"], rank: int) -> tuple[Float[Tensor, " d"], Float[Tensor, "k d"]]:
    """The mean of the rows and their first `rank` components, as orthonormal rows, the largest first.

    Many rows, few channels: the eigenvectors of the covariance, which is summed in double precision.
    """
    mean = rows.double().mean(dim=0)
    centred = rows.double() - mean
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    return mean.to(rows), vectors.flip(1)[:, :rank].T.to(rows)


def described_by(
    rows: Float[Tensor, "*b m d"], mean: Float[Tensor, " d"], basis: Float[Tensor, "k d"]
) -> Float[Tensor, "*b m d"]:
    """The rows projected onto a basis."""
    return mean + (rows - mean) @ basis.T @ basis


if __name__ == "__main__":
    main()
