"""Alignment as a job of the training loop: cached pairs in, a probe in the space of texts out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning_fabric import Fabric
from rich.console import RenderableType
from rich.table import Table
from safetensors import SafetensorError
from torch import Tensor

from asterism.data.sources.source import sampled_contents
from asterism.errors import UserError, reason_of
from asterism.extras.words.aligned import Alignment, backbone_fingerprint, save_alignment
from asterism.extras.words.pair_losses import sigmoid_pair_loss, softmax_pair_loss
from asterism.extras.words.pair_scores import recall
from asterism.extras.words.pairs import PairBatch, Pairs, batches
from asterism.extras.words.recipe import AlignRecipe, PairLossConfig
from asterism.extras.words.run import AlignedRun
from asterism.extras.words.sources.captioned import Captioned
from asterism.files import write_text
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.nn.learner import Learner, trained_parameters
from asterism.ops.collectives import on_first_process, rank
from asterism.train.checkpoint import Facts, State
from asterism.train.job import Job, timed
from asterism.train.optim import build_optimizer, set_schedules
from asterism.train.resolve import length
from asterism.types import Losses, Progress

_KS = (1, 5, 10)
_MOST_MEASUREMENTS = 20  # in a run
_MEASURED = 2000  # held-out images at most


class AlignmentJob(Job[PairBatch]):
    """A resolved recipe, the frozen encoder, what is trained, and its cached pairs."""

    verb = "align"

    def __init__(
        self,
        recipe: AlignRecipe,
        source: Captioned,
        encoder: Encoder,
        alignment: Alignment,
        pairs: Pairs,
        held_out: Pairs | None,
        run: AlignedRun,
        unreadable: Sequence[BadImage] = (),
    ) -> None:
        self.recipe, self.source, self.encoder = recipe, source, encoder
        self.run: AlignedRun = run
        self.learner = self.model = Aligning(alignment, recipe.loss)
        self.pairs, self.held_out = pairs, held_out
        self.trainer, self.checkpoint, self.logging = recipe.trainer, recipe.checkpoint, recipe.monitor
        self.clipping = recipe.optim
        self.images, self.workers = len(pairs), 0
        self._unreadable = unreadable
        self._contents = sampled_contents(source)
        if held_out is not None and rank() == 0:
            self.measurement = _HeldOut(self)

    def optimizer(self) -> torch.optim.Optimizer:
        return build_optimizer(self.learner, self.recipe.optim)

    def set_schedules(self, optimizer: torch.optim.Optimizer, progress: Progress) -> float:
        return set_schedules(optimizer, self.recipe.optim, progress, self.batch_size)

    def batches(self, start: int, fabric: Fabric) -> Iterator[tuple[PairBatch, float]]:
        made = batches(
            self.pairs,
            batch_size=self.batch_size,
            seed=self.trainer.seed,
            start=start,
            steps=self.end,
            rank=fabric.global_rank,
            world=fabric.world_size,
        )
        for batch, waited in timed(made):
            yield batch.to(fabric.device), waited

    def facts(self) -> Facts:
        return Facts(
            steps=self.steps,
            images=len(self.source),
            batch_size=self.batch_size,
            data=self.source.fingerprint,
            contents=self._contents,
            recipe=self.recipe.model_dump(mode="json"),
            frozen_encoders=fingerprints(self.encoder, self.model.alignment),
        )

    def saved(self, state: State) -> None:
        """The encoder is written once, the alignment after every checkpoint."""
        alignment = self.model.alignment
        path = self.run.alignment
        try:
            if not self.run.weights.is_file():
                self.encoder.save(self.run.weights)
            save_alignment(alignment, self.encoder, path, state.step)
            if self._unreadable:
                lines = [json.dumps({"key": bad.key, "reason": bad.reason}) for bad in self._unreadable]
                write_text(self.run.path / "bad_images.jsonl", "\n".join(lines) + "\n")
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"cannot write {path}: {reason_of(error)}; the checkpoint of step {state.step} is complete"
            ) from None

    def repair(self, state: State, finished: bool, report: Callable[[str], None]) -> None:
        if finished:  # else the next checkpoint writes it
            on_first_process(lambda: self.saved(state))

    def describe(self, fabric: Fabric) -> RenderableType:
        recipe = self.recipe
        held_out = "" if self.held_out is None else f", {len(self.held_out):,} held out"
        table = Table.grid(padding=(0, 2))
        table.add_row("encoder", f"{recipe.source.path}, frozen; its {recipe.probe.tokens} tokens are cached")
        text = self.model.alignment.text
        table.add_row("text", f"{recipe.text.name} ({'frozen' if text.frozen else 'trained'}), {text.dim} channels")
        table.add_row("parameters", f"{trained_parameters(self.learner) / 1e6:.1f} M trained")
        sentences = len(self.pairs.sentences.sentences)
        table.add_row("data", f"{recipe.data.path}, {self.images:,} images{held_out}, {sentences:,} sentences")
        table.add_row("length", length(self.trainer, self.images, "pairs"))
        table.add_row("loss", f"{recipe.loss.name}, learning rate {recipe.optim.peak_lr(self.batch_size):.3g}")
        table.add_row("device", f"{fabric.world_size} × {fabric.device.type}, precision {self.trainer.precision}")
        return table

    def advice(self, device: torch.device) -> str:
        more = "a GPU" if device.type == "cpu" else "more devices (trainer.devices)"
        return f"a smaller text tower (text.depth, text.dim), fewer tokens (probe.tokens=class), or {more}"

    def verdict(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        values = [record for record in records if "held_out/text_to_image_r1" in record]
        if not values or self.held_out is None:
            return None
        last = values[-1]
        images = min(len(self.held_out), _MEASURED)
        return (
            f"Among {images:,} held-out images, the right one is first for {last['held_out/text_to_image_r1']:.1f} % "
            f"of the sentences (chance {100 / images:.2g} %), and a right sentence for "
            f"{last['held_out/image_to_text_r1']:.1f} % of the images"
        )


def fingerprints(encoder: Encoder, alignment: Alignment) -> dict[str, str]:
    """Of what a resumed run needs and checkpoints do not contain."""
    found = {"source.path": backbone_fingerprint(encoder)}
    if alignment.text.frozen:
        found["text.name"] = alignment.text.fingerprint
    return found


class _HeldOut:
    """Recall among held-out images and their sentences, on the first process."""

    def __init__(self, job: AlignmentJob) -> None:
        assert job.held_out is not None
        self._job = job
        most = None if job.steps is None else -(-job.steps // _MOST_MEASUREMENTS)
        self.interval = None if most is None else max(1, job.steps_per_epoch, most)

    def measure(self, step: int) -> dict[str, float]:
        assert self._job.held_out is not None
        pairs = self._job.held_out
        device = next(self._job.learner.parameters()).device
        self._job.learner.eval()
        images, texts = self._job.model.vectors(pairs, device)
        self._job.learner.train()
        matches = pairs.matches()
        if len(images) > _MEASURED:
            images = images[:_MEASURED]
            matches = matches[matches[:, 0] < _MEASURED]
            kept, renumbered = torch.unique(matches[:, 1], return_inverse=True)
            texts, matches = texts[kept.to(device)], torch.stack([matches[:, 0], renumbered], dim=1)
        to_image, to_text = recall(texts, images, matches.flip(1), _KS), recall(images, texts, matches, _KS)
        return {
            **{f"held_out/text_to_image_r{k}": value for k, value in to_image.items()},
            **{f"held_out/image_to_text_r{k}": value for k, value in to_text.items()},
        }


_AT_ONCE = 256  # images or texts


class Aligning(Learner[PairBatch]):
    """An alignment with its loss. Checkpoints contain the probe, scale and bias, and our own text tower."""

    def __init__(self, alignment: Alignment, loss: PairLossConfig) -> None:
        super().__init__()
        self.alignment = alignment
        self._loss = loss
        alignment.bias.requires_grad_(loss.name == "sigmoid")  # softmax has no use for it

    def loss(self, batch: PairBatch, progress: Progress) -> Losses:
        images = self.alignment.images_of_tokens(batch.tokens).float()
        texts = self._texts(batch.text).float()
        scale, bias = self.alignment.log_scale.exp(), self.alignment.bias
        if self._loss.name == "sigmoid":
            pair = sigmoid_pair_loss(images, texts, scale, bias, self._loss.chunk)
        else:
            pair = softmax_pair_loss(images, texts, scale, self._loss.chunk)
        metrics = {"scale": scale.detach(), "bias": bias.detach()}
        return Losses({"pair": pair}, metrics=metrics, embeddings=images.detach())

    @torch.no_grad()
    def vectors(self, pairs: Pairs, device: torch.device) -> tuple[Float[Tensor, "n e"], Float[Tensor, "s e"]]:
        """Unit vectors of all images and of all their sentences."""
        images = [
            self.alignment.images_of_tokens(pairs.tokens[rows].float().to(device))
            for rows in torch.split(pairs.rows, _AT_ONCE)
        ]
        texts = []
        for rows in torch.split(torch.arange(len(pairs.sentences.sentences)), _AT_ONCE):
            own = pairs.sentences.of(rows)
            moved = own.to(device) if isinstance(own, Tensor) else (own[0].to(device), own[1].to(device))
            texts.append(self._texts(moved))
        return torch.cat(images).float(), torch.cat(texts).float()

    def _texts(self, text: tuple[Tensor, Tensor] | Tensor) -> Float[Tensor, "b e"]:
        return text if isinstance(text, Tensor) else F.normalize(self.alignment.text(*text), dim=1)
