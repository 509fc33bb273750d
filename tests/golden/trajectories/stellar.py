"""Ten steps of microsoft/STELLAR: constant rate, cosine, and with a teacher."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from asterism.methods import stellar
from asterism.methods.stellar import Stellar, StellarConfig, WarmupConfig, Weights
from asterism.nn.backbone import BackboneConfig
from asterism.nn.localization import LocalizationConfig
from asterism.nn.reconstruction import ReconstructionConfig
from asterism.nn.vocabulary import VocabularyConfig
from asterism.ops.concept_alignment import Alignment, AlignmentConfig, align_concepts
from asterism.ops.masking import Focus, MaskDraw, focus_noise
from asterism.ops.normalise import normalise
from asterism.train.optim import OptimConfig, clip_gradients
from asterism.types import Batch, Losses, Progress
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.steps import batch_of, train
from tests.golden.trajectories.teacher_and_student import SCHEDULE, Recorder, progress_of
from tests.golden.vectors import Vectors, read

FILES = "stellar*.npz"

NOISE = 1e-6  # README: tolerance of the noise after the focus

Find = Callable[[str], Tensor]  # one of our tensors by its name: parameter, teacher's parameter or gradient


def replay(path: Path) -> Iterator[Compared]:
    vectors = read(path)
    params, tolerance = vectors.params, vectors.params["tolerance"]
    method, record, teacher = run(vectors)
    for name in ("out_lr", "out_weight_decay", *["out_momentum"] * ("out_momentum" in vectors.arrays)):
        yield record.compared(name, SCHEDULE, group="schedules")
    yield record.compared("out_noise_biased", NOISE, group="masks")
    for name in ("out_ids_keep", "out_match", *["out_match_image"] * ("out_match_image" in vectors.arrays)):
        yield record.compared(name, 0.0, group="masks and matches")
    for name in vectors.arrays:
        if name.startswith("out_loss"):
            yield record.compared(name, tolerance.get(name, tolerance["out_loss"]), group="losses")
        elif name.startswith("out_grad_norm"):
            yield record.compared(name, tolerance["out_grad_norm"], group="gradient norms")
        elif name.startswith(("out_param_", "out_teacher_param_")):
            kind = "out_teacher_param" if name.startswith("out_teacher") else "out_param"
            yield record.compared(name, tolerance.get(kind, tolerance["out_param"]), group=f"{kind} snapshots")
    excluded, unused = tuple(params["excluded"]), set(params["unused_parameters"])
    for name, theirs in named(vectors, "final__").items():
        if name not in unused and not name.endswith(excluded):
            ours = official(name, find_in(method))
            moved = "final" if name in params["grad_norm_names"] else "final, fixed"
            yield Compared(f"{moved}/{name}", ours.numpy(), theirs.numpy(), tolerance["final"] * (moved == "final"))
    for name, theirs in named(vectors, "final_teacher__").items():
        name = student_name(name)
        if name not in unused and not name.endswith(excluded):
            ours = official(name, teacher.__getitem__)
            yield Compared(f"final_teacher/{name}", ours.numpy(), theirs.numpy(), tolerance["final_teacher"])


def run(vectors: Vectors) -> tuple[Stellar, Recorder, dict[str, Tensor]]:
    """The method after the last step, the record, and the teacher used in the last step."""
    params, record = vectors.params, Recorder(vectors)
    method, optim, teacher = method_of(params), optim_config(params), {}
    start = named(vectors, "init__")
    load(method, {name: start[name] for name in start.keys() - set(params["unused_parameters"])})

    def loss(progress: Progress) -> Losses:
        teacher.update({name: p.clone() for name, p in teacher_of(method).items()})
        masks = [mask_at(vectors, progress.step, view) for view in range(params["num_masks"])]
        ratio = method.mask_ratio(progress)
        noise = [
            mask.noise if mask.focus is None else focus_noise(mask.noise, method.grid, mask.focus) for mask in masks
        ]
        record.add("out_noise_biased", torch.stack(noise))
        record.add("out_ids_keep", torch.stack([mask.keep(method.grid, ratio) for mask in masks]))
        return method.losses(batch_at(vectors, progress.step), masks, progress)

    def aligned(*arguments: Any) -> Alignment:
        alignment = align_concepts(*arguments)
        record.add("out_match", alignment.sigma.transpose(0, 1))
        record.add("out_match_image", alignment.sigma_clean[:, 0])
        return alignment

    with mock.patch.object(stellar, "align_concepts", aligned):
        for step in train(method, optim, params["steps"], progress_of(params), loss, params["batch_size"]):
            record.add("out_lr", step.lr)
            record.add("out_weight_decay", step.weight_decay)
            record_losses(record, step.losses)
            record.add("out_grad_norm", step.gradient_norm)
            norms = [official(name, step.gradients.__getitem__).norm() for name in params["grad_norm_names"]]
            record.add("out_grad_norms", torch.stack(norms))
            record.add("out_grad_norm_after_clipping", clipped_norm(step.gradients.values(), optim))
            for short, name in params["snapshots"].items():
                record.add(f"out_param_{short}", official(name, find_in(method)))
            if method.config.warmup is not None:
                record.add("out_momentum", method.config.warmup.momentum)
                for short, name in params["snapshots"].items():
                    record.add(f"out_teacher_param_{short}", official(name, teacher.__getitem__))
    return method, record, teacher


def record_losses(record: Recorder, losses: Losses) -> None:
    terms, weights = losses.terms, losses.weights
    record.add("out_loss", losses.total)
    record.add("out_loss_mse", terms["reconstruction"])
    record.add("out_loss_koleo", weights["koleo"] * terms["koleo"] + weights["koleo_masked"] * terms["koleo_masked"])
    record.add("out_loss_clustering", terms["cluster"])
    record.add("out_loss_cls_clustering", terms["cls_cluster"])
    record.add("out_loss_mask", terms["align"])
    record.add("out_loss_cls", terms["cls_masked"] + terms["cls_local"])


def clipped_norm(gradients: Any, optim: OptimConfig) -> float:
    """Norm of copies of the gradients, clipped."""
    copies = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for copy, gradient in zip(copies, gradients, strict=True):
        copy.grad = gradient.clone()
    clip_gradients(copies, optim)
    return float(np.linalg.norm([float(copy.grad.norm()) for copy in copies]))


def mask_at(vectors: Vectors, step: int, view: int) -> MaskDraw:
    centre, sigma, on = (vectors[f"in_focus_{part}"][step, view] for part in ("centre", "sigma", "on"))
    return MaskDraw(vectors["in_noise"][step, view], Focus(centre, sigma, on))


def batch_at(vectors: Vectors, step: int) -> Batch:
    """The clean view is the first global view; masked views are all of them."""
    mean, std = vectors.params["image_mean"], vectors.params["image_std"]
    views, local = vectors["in_views_global"][step], vectors["in_views_local"][step]
    return batch_of([normalise(view, mean, std) for view in (views[0], *views, *local)])


def method_of(params: dict[str, Any]) -> Stellar:
    vocabulary = VocabularyConfig(
        prototypes=params["num_clusters"], hidden_dim=params["predictor_hidden"], bottleneck_dim=params["prototype_dim"]
    )
    regular, spread = params["reg_coeff"], params["reg_coeff"] * params["koleo_weight"]
    config = StellarConfig(
        tokens=params["num_sparse_tokens"],
        localization=LocalizationConfig(temperature=params["spatial_temp"]),
        reconstruction=ReconstructionConfig(
            weight=params["rec_coeff"],
            decoder_dim=params["decoder_hidden_size"],
            decoder_depth=params["num_decoder_layers"],
            decoder_heads=params["decoder_num_attention_heads"],
            decoder_mlp_ratio=params["decoder_intermediate_size"] / params["decoder_hidden_size"],
        ),
        vocabulary=vocabulary,
        class_vocabulary=vocabulary,
        alignment=AlignmentConfig(
            target_temp=params["sk_temp"],
            prediction_temp=params["logits_temp"],
            sinkhorn_iterations=params["n_sk_iter"],
            match_epsilon=params["match_epsilon"],
            match_iterations=params["match_iterations"],
        ),
        weights=Weights(
            **dict.fromkeys(("cluster", "align", "cls_cluster", "cls_masked", "cls_local"), regular),
            **dict.fromkeys(("koleo", "koleo_masked"), spread),
        ),
        warmup=WarmupConfig(share=1, momentum=params["teacher_momentum"], mask_ratio=params["masking_ratio"])
        if params.get("momentum_teacher")
        else None,
        masked_views=params["num_masks"],
        mask_ratio=params["masking_ratio"],
        local_views=params["num_local_crops"],
        local_size=params["local_size"],
    )
    backbone = BackboneConfig(
        image_size=params["image_size"],
        patch_size=params["patch_size"],
        dim=params["hidden_size"],
        depth=params["num_hidden_layers"],
        heads=params["num_attention_heads"],
        mlp_ratio=params["intermediate_size"] / params["hidden_size"],
        layer_norm_eps=params["layer_norm_eps"],
        class_position=True,
        resampling="plain",
    )
    method = Stellar(config, backbone)
    method.mean, method.std = params["image_mean"], params["image_std"]
    return method


def optim_config(params: dict[str, Any]) -> OptimConfig:
    total = params["epochs"] * params["steps_per_epoch"]
    return OptimConfig(
        lr=params["lr"],
        lr_scaling="none",
        min_lr=0.0,
        schedule=params["scheduler"] or "constant",
        warmup_epochs=int(params.get("warmup_ratio", 0) * total) / params["steps_per_epoch"],
        warmup_peak="next",
        decay="all",
        weight_decay=params["weight_decay"],
        weight_decay_end=params["weight_decay"],
        betas=params["adam_betas"],
        clip=params["gradient_clip_val"],
        clip_by="global",
    )


PARTS = {  # prefixes: official → ours
    "encoder.embeddings.cls_token": "backbone.network.cls_token",
    "encoder.embeddings.patch_embeddings.projection.": "backbone.network.patch_embed.proj.",
    "encoder.encoder.layer.": "backbone.network.blocks.",
    "encoder.layernorm.": "backbone.network.norm.",
    "decoder.encoder.layer.": "reconstruction.decoder.blocks.",
    "decoder.layernorm.": "reconstruction.decoder.norm.",
    "decoder_proj.": "reconstruction.decoder.embed.",
    "position_embedding.positional_encoding_gaussian_matrix": "reconstruction.decoder.positions.matrix",
    "reconstruction_head.": "reconstruction.head.",
    "dense_proj.": "localization.dense.",
    "sparse_proj.": "localization.sparse.",
    "clustering_head.layer.weight": "vocabulary.prototypes",
    "clustering_head.predictor.layers.": "vocabulary.mlp.",
    "cls_cluster_head.layer.weight": "class_vocabulary.prototypes",
    "cls_cluster_head.predictor.layers.": "class_vocabulary.mlp.",
}
LAYERS = {  # within a block
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
}
QKV = re.compile(r"attention\.attention\.(query|key|value)\.")


def official(name: str, find: Find) -> Tensor:
    """Our tensor for this official name; a view if it is only part of ours."""
    if name == "sparse_tokens":
        return find("backbone.network.reg_token")[0]
    if name == "encoder.embeddings.position_embeddings":  # ours has rows of zeros for the registers too
        table, registers = find("backbone.network.pos_embed"), find("backbone.network.reg_token").shape[1]
        return torch.cat([table[:, :1], table[:, 1 + registers :]], dim=1)
    ours = next(new + name.removeprefix(old) for old, new in PARTS.items() if name.startswith(old))
    if (part := QKV.search(ours)) is not None:
        third = ("query", "key", "value").index(part[1])
        return find(QKV.sub("attn.qkv.", ours)).chunk(3)[third]
    for old, new in LAYERS.items():
        ours = re.sub(rf"(?<=blocks\.)(\d+)\.{re.escape(old)}", rf"\1.{new}", ours)
    return find(ours)


@torch.no_grad()
def load(method: Stellar, tensors: Mapping[str, Tensor]) -> None:
    """Load official weights; the teacher is a copy of the student."""
    find = find_in(method)
    for name, tensor in tensors.items():
        if name == "encoder.embeddings.position_embeddings":
            table = find("backbone.network.pos_embed")
            table.zero_()
            table[:, :1], table[:, -(tensor.shape[1] - 1) :] = tensor[:, :1], tensor[:, 1:]
        else:
            official(name, find).copy_(tensor)
    if method.config.warmup is not None:
        method.teacher_backbone.update(method.backbone, momentum=0.0)
        method.teacher_vocabulary.update(method.vocabulary, momentum=0.0)
        method.teacher_class_vocabulary.update(method.class_vocabulary, momentum=0.0)


def find_in(method: Stellar) -> Find:
    return {name: tensor.detach() for name, tensor in method.state_dict(keep_vars=True).items()}.__getitem__


def teacher_of(method: Stellar) -> dict[str, Tensor]:
    """The teacher's parameters under the student's names."""
    own = {name.removeprefix("teacher_"): p for name, p in method.named_parameters() if name.startswith("teacher_")}
    return {name.replace(".network.", ".", 1): p.detach() for name, p in own.items()}


def student_name(name: str) -> str:
    for teacher, student in (("teacher_head", "clustering_head"), ("teacher_cls_head", "cls_cluster_head")):
        name = re.sub(f"^{teacher}", student, name)
    return name.removeprefix("teacher_")


def named(vectors: Vectors, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in vectors.arrays.items() if name.startswith(prefix)}
