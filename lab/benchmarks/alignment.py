"""Time and memory of alignment for many cached pairs: synthetic features, our own text tower, one epoch.

    python -m lab.benchmarks.alignment --pairs 100000 --steps 20

The features are written to a file and mapped, as the cache does. Also prints the memory of the loss alone, by batch,
against the full matrix of logits.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from asterism.extras.words.aligned import Alignment
from asterism.extras.words.attention_pooling import AttentionPooling, usual_heads
from asterism.extras.words.job import Aligning
from asterism.extras.words.pair_losses import sigmoid_pair_loss
from asterism.extras.words.pairs import Pairs, batches, text_rows
from asterism.extras.words.recipe import PairLossConfig
from asterism.extras.words.towers.own_tower import OwnTower, TextConfig
from asterism.extras.words.towers.words import WordTokens
from asterism.types import Progress


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def synthetic(place: Path, count: int, tokens: int, dim: int) -> torch.Tensor:
    file = place / "tokens"
    generator = torch.Generator().manual_seed(0)
    with file.open("wb") as out:
        for first in range(0, count, 1000):
            rows = torch.randn(min(1000, count - first), tokens, dim, generator=generator).half()
            out.write(rows.numpy().tobytes())
    mapped = torch.from_file(str(file), shared=False, size=count * tokens * dim, dtype=torch.float16)
    return mapped.view(count, tokens, dim)


def sentences(count: int) -> list[str]:
    words = [f"word{number}" for number in range(2000)]
    picks = torch.randint(0, 2000, (count, 9), generator=torch.Generator().manual_seed(1)).tolist()
    return [" ".join(words[pick] for pick in row) for row in picks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=None, help="measured steps; by default one epoch")
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        rows = synthetic(Path(folder), given.pairs, given.tokens, given.dim)
        texts = sentences(given.pairs)
        config = TextConfig(dim=128, depth=2)
        before = time.perf_counter()
        tower = OwnTower(config, WordTokens.learn(texts, config.vocabulary).words)
        table = text_rows(tower, texts)
        print(f"sentences to tokens: {time.perf_counter() - before:.1f} s")
        every = torch.arange(given.pairs)
        pairs = Pairs(rows, every, torch.arange(given.pairs + 1), every, table)
        probe = AttentionPooling(given.dim, config.dim, usual_heads(given.dim))
        learner = Aligning(Alignment(probe, tower, "sparse", 20.0, -10.0), PairLossConfig())
        optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3)
        per_epoch = given.pairs // given.batch
        steps = given.steps or per_epoch
        before, cpu = time.perf_counter(), time.process_time()
        for step, batch in enumerate(
            batches(pairs, batch_size=given.batch, seed=0, start=0, steps=steps, rank=0, world=1)
        ):
            learner.loss(batch, Progress(step, steps, per_epoch)).total.backward()
            optimizer.step()
            optimizer.zero_grad()
        wall, cpu = (time.perf_counter() - before) / steps, (time.process_time() - cpu) / steps
        print(
            f"{given.pairs:,} pairs of {given.tokens} tokens × {given.dim}, batch {given.batch}: {wall:.3f} s per step "
            f"({cpu:.3f} s of CPU), {cpu * per_epoch:.0f} s of CPU per epoch of {per_epoch} steps; peak memory "
            f"{peak_mb() - start:.0f} MB above the {start:.0f} MB of the imports"
        )
    for size in (1024, 2048, 4096):
        x, y = (F.normalize(torch.randn(size, 128), dim=1).requires_grad_() for _ in range(2))
        kept: list[int] = []

        def pack(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel() * 4)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            sigmoid_pair_loss(x, y, torch.tensor(20.0), torch.tensor(-10.0))
        print(f"loss, batch {size}: {sum(kept) / 2**20:.1f} MB kept; all logits are {size**2 * 4 / 2**20:.0f} MB")


if __name__ == "__main__":
    main()
