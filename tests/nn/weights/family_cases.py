"""One small network of every family of weights with unusual values, and what its original code computes.

    python -m tests.nn.weights.family_cases      # prints the table of docs/weights.md

A case writes a file or folder and knows the features of its network at the file's own image size (rotary positions: at
another one too). `options` are the words that make it load exactly; `unsure` are those that a warning must name without
them. An empty `unsure` means that the file states everything.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.nn.positions import sincos_table
from asterism.nn.weights.description import GuessedWeights
from asterism.nn.weights.load import load_encoder
from tests.nn.weights import transformers_models

PATCH, SIDE = 6, 30
MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
SIZES: dict[str, Any] = {
    "img_size": SIDE,
    "patch_size": PATCH,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 0,
    "norm_layer": partial(nn.LayerNorm, eps=1e-3),
}
UNUSUAL: dict[str, Any] = {"heads": 4, "eps": 1e-3, "mean": MEAN, "std": STD}
GUESSED = ("heads", "eps", "mean", "std")

Reference = Callable[[Tensor], tuple[Tensor, Tensor]]  # normalised pixels → vector of the image, patches


@dataclass(frozen=True)
class Case:
    write: Callable[[Path], tuple[Path, Reference]]
    options: Mapping[str, Any] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()
    asks: str = ""  # instead of a warning: what the refusal asks for
    shapes: tuple[tuple[int, int], ...] = ((5, 5),)


def pixels(rows: int, columns: int) -> Tensor:
    return torch.randn(2, 3, PATCH * rows, PATCH * columns, generator=torch.Generator().manual_seed(7))


def network(name: str = "vit_base_patch16_224", **changes: Any) -> Any:
    """A timm network in which every parameter affects the output."""
    torch.manual_seed(11)
    made: Any = timm.create_model(name, **(SIZES | changes))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


def class_and_patches(made: Any) -> Reference:
    def features(x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = made.forward_features(x)
        return tokens[:, 0], tokens[:, made.num_prefix_tokens :]

    return features


def pooled_and_patches(made: Any) -> Reference:
    def features(x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = made.forward_features(x)
        return made.forward_head(tokens, pre_logits=True), tokens[:, made.num_prefix_tokens :]

    return features


def _saved(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def _own(folder: Path) -> tuple[Path, Reference]:
    plain = network()
    _saved(folder / "w.safetensors", plain.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedWeights)
        load_encoder(folder / "w.safetensors", **UNUSUAL).save(folder / "encoder.safetensors")
    return folder / "encoder.safetensors", class_and_patches(plain)


def _bare(folder: Path) -> tuple[Path, Reference]:
    plain = network()
    torch.save(plain.state_dict(), folder / "w.pth")
    return folder / "w.pth", class_and_patches(plain)


def _trained(**more: Any) -> Callable[[Path], tuple[Path, Reference]]:
    """A training checkpoint of DINO's code and its successors: student in DDP, teacher, heads, settings."""

    def write(folder: Path) -> tuple[Path, Reference]:
        plain = network()
        head = {"head.mlp.0.weight": torch.randn(8, 64), "head.last_layer.weight_v": torch.randn(4, 8)}
        teacher = {f"backbone.{n}": t for n, t in plain.state_dict().items()} | head
        student = {f"module.{n}": t + 1 for n, t in teacher.items()}
        args = argparse.Namespace(arch="vit_small", patch_size=PATCH)
        both = {"student": student, "teacher": teacher, "epoch": 100, "args": args, "optimizer": {"state": {}}}
        torch.save(both | more, folder / "checkpoint.pth")
        return folder / "checkpoint.pth", class_and_patches(plain)

    return write


# as main_cribo.py stores them
_CRIBO: dict[str, Any] = {
    "dino_loss": {"center": torch.zeros(1, 4), "center_c": torch.zeros(1, 4)},
    "centroids_queue_cpu": torch.rand(2, 8, 64),
    "cls_queue_cpu": torch.rand(2, 4, 64),
    "cpv_queue_cpu": torch.ones(4, dtype=torch.int),
    "fp16_scaler": {"scale": 1.0},
}


def _ibot_student_token(folder: Path) -> tuple[Path, Reference]:
    path, reference = _trained(ibot_loss={"center": torch.zeros(1, 4)})(folder)
    values = torch.load(path, weights_only=False)
    values["student"]["module.backbone.masked_embed"] = torch.ones(1, 64)
    torch.save(values, path)
    return path, reference


def _flsl(folder: Path) -> tuple[Path, Reference]:
    """The class token of DINO's ViT stays in the file; positions are those of the patches, and it is not used."""
    plain = network(class_token=False, global_pool="avg", fc_norm=False)
    teacher = {f"backbone.{n}": t for n, t in plain.state_dict().items()}
    teacher["backbone.cls_token"] = torch.ones(1, 1, 64)
    student = {f"module.{n}": t for n, t in teacher.items()}
    torch.save({"student": student, "teacher": teacher, "epoch": 1}, folder / "flsl.pth")

    def features(x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = plain.forward_features(x)
        return tokens.mean(dim=1), tokens

    return folder / "flsl.pth", features


def _mae(folder: Path) -> tuple[Path, Reference]:
    plain = network()
    with torch.no_grad():
        plain.pos_embed.copy_(torch.cat([torch.zeros(1, 64), sincos_table(64, (5, 5))])[None])
    decoder = {"decoder_pos_embed": torch.zeros(1, 26, 32), "decoder_norm.weight": torch.ones(32)}
    torch.save({"model": plain.state_dict() | decoder | {"mask_token": torch.zeros(1, 1, 32)}}, folder / "mae.pth")
    return folder / "mae.pth", class_and_patches(plain)


def _mean_pooled(folder: Path) -> tuple[Path, Reference]:
    plain = network(global_pool="avg", num_classes=5)
    torch.save({"model": plain.state_dict()}, folder / "finetuned.pth")
    return folder / "finetuned.pth", pooled_and_patches(plain)


def _dinov2(name: str = "vit_base_patch14_dinov2", **changes: Any) -> Callable[[Path], tuple[Path, Reference]]:
    def write(folder: Path) -> tuple[Path, Reference]:
        plain = network(name, **changes)
        theirs = {n.replace("mlp.fc1", "mlp.w12") if "giant" in name else n: t for n, t in plain.state_dict().items()}
        theirs = {n.replace("mlp.fc2", "mlp.w3") if "giant" in name else n: t for n, t in theirs.items()}
        if "reg_token" in theirs:  # positions have a row for the class token, which is folded into it in timm
            theirs["register_tokens"] = theirs.pop("reg_token")
            row = torch.randn(1, 1, 64)
            theirs["cls_token"] = theirs["cls_token"] - row
            theirs["pos_embed"] = torch.cat([row, theirs["pos_embed"]], dim=1)
        torch.save(theirs | {"mask_token": torch.zeros(1, 64)}, folder / "dinov2.pth")
        return folder / "dinov2.pth", class_and_patches(plain)

    return write


_ROPE = {"norm_layer": partial(nn.LayerNorm, eps=1e-3), "global_pool": ""}


def _dinov3(name: str = "vit_small_patch16_dinov3_qkvb", **changes: Any) -> Callable[[Path], tuple[Path, Reference]]:
    """The official names; keys have a bias that a mask removes, and periods are stored in bfloat16."""

    def write(folder: Path) -> tuple[Path, Reference]:
        plain = network(name, num_reg_tokens=3, **(_ROPE | changes))
        theirs: dict[str, Tensor] = {"mask_token": torch.zeros(1, 64), "local_cls_norm.weight": torch.ones(64)}
        theirs["rope_embed.periods"] = plain.rope.periods.bfloat16()
        for key, tensor in plain.state_dict().items():
            if key.endswith("attn.q_bias"):
                place = key.removesuffix("q_bias")
                bias = torch.cat([tensor, torch.ones(64), plain.state_dict()[f"{place}v_bias"]])
                theirs[f"{place}qkv.bias"] = bias
                theirs[f"{place}qkv.bias_mask"] = torch.cat([torch.ones(64), torch.zeros(64), torch.ones(64)])
            elif not key.endswith("attn.v_bias"):
                for ours, official in (
                    ("reg_token", "storage_tokens"),
                    ("gamma_1", "ls1.gamma"),
                    ("gamma_2", "ls2.gamma"),
                    ("mlp.fc1_g", "mlp.w1"),
                    ("mlp.fc1_x", "mlp.w2"),
                    *([("mlp.fc2", "mlp.w3")] if "plus" in name else []),
                ):
                    key = key.replace(ours, official)
                theirs[key] = tensor
        torch.save(theirs, folder / "dinov3.pth")
        return folder / "dinov3.pth", class_and_patches(plain)

    return write


def _timm_file(
    name: str, reference: Callable[[Any], Reference] = class_and_patches, **changes: Any
) -> Callable[[Path], tuple[Path, Reference]]:
    def write(folder: Path) -> tuple[Path, Reference]:
        plain = network(name, **changes)
        return _saved(folder / "w.safetensors", plain.state_dict()), reference(plain)

    return write


def _timm_folder(folder: Path) -> tuple[Path, Reference]:
    name = "vit_base_patch16_clip_quickgelu_224"
    plain = network(name, norm_layer=partial(nn.LayerNorm, eps=1e-5))
    _saved(folder / "model.safetensors", plain.state_dict())
    config = {
        "architecture": name,
        "model_args": {"num_heads": 4},
        "pretrained_cfg": {"mean": list(MEAN), "std": list(STD)},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder, class_and_patches(plain)


def _transformers(kind: str) -> Callable[[Path], tuple[Path, Reference]]:
    def write(folder: Path) -> tuple[Path, Reference]:
        model = transformers_models.build(kind)
        with contextlib.redirect_stderr(io.StringIO()):
            transformers_models.saved(model, folder)
        return folder, partial(transformers_models.features, kind, model)

    return write


_ASKED_NAME = {"name": "vit_base_patch16_clip_quickgelu_224.openai", "heads": 4}
CASES: dict[str, Case] = {
    "Asterism run or export": Case(_own),
    "DINO, iBOT: backbone": Case(_bare, UNUSUAL, (*GUESSED, "family")),
    "DINO: training checkpoint": Case(_trained(), UNUSUAL, GUESSED),
    "iBOT: training checkpoint": Case(_ibot_student_token, UNUSUAL, GUESSED),
    "MaSSL, SOP: training checkpoint": Case(_trained(loss={"center": torch.zeros(1, 4)}), UNUSUAL, GUESSED),
    "CrIBo: training checkpoint": Case(_trained(**_CRIBO), UNUSUAL, GUESSED),
    "FLSL: training checkpoint": Case(_flsl, UNUSUAL, GUESSED),
    "MAE": Case(_mae, UNUSUAL, GUESSED),
    "MAE, fine-tuned (mean pooling)": Case(_mean_pooled, UNUSUAL, GUESSED),
    "DINOv2": Case(_dinov2(), UNUSUAL, GUESSED),
    "DINOv2, registers": Case(_dinov2("vit_base_patch14_reg4_dinov2", reg_tokens=3), UNUSUAL, GUESSED),
    "DINOv2, gated": Case(_dinov2("vit_giant_patch14_dinov2", mlp_ratio=4), UNUSUAL, GUESSED),
    "DINOv3": Case(_dinov3(), UNUSUAL | {"image_size": SIDE}, (*GUESSED, "image_size"), shapes=((5, 5), (4, 7))),
    "DINOv3, gated": Case(
        _dinov3("vit_small_plus_patch16_dinov3_qkvb", rope_temperature=30.0),
        UNUSUAL | {"image_size": SIDE},
        (*GUESSED, "image_size"),
        shapes=((5, 5), (4, 7)),
    ),
    "timm file": Case(_timm_file("vit_base_patch16_224", num_classes=5), UNUSUAL | {"family": "timm"}, GUESSED),
    "timm file, DINOv3": Case(
        _timm_file("vit_small_patch16_dinov3", **_ROPE),
        UNUSUAL | {"image_size": SIDE},
        GUESSED,
        shapes=((5, 5), (4, 7)),
    ),
    "timm file, SigLIP": Case(
        _timm_file("vit_base_patch16_siglip_224", pooled_and_patches, global_pool="map", act_layer="gelu_tanh"),
        UNUSUAL | {"activation": "gelu_tanh"},
        (*GUESSED, "activation"),
    ),
    "timm file, CLIP": Case(
        _timm_file("vit_base_patch16_clip_quickgelu_224", norm_layer=partial(nn.LayerNorm, eps=1e-5)),
        _ASKED_NAME | {"mean": MEAN, "std": STD},
        asks="give name=",
    ),
    "timm folder": Case(_timm_folder),
    **{
        f"transformers: {kind}": Case(_transformers(kind), shapes=((5, 5), (4, 7)))
        for kind in transformers_models.KINDS
    },
}


@torch.no_grad()
def difference(encoder: Encoder, reference: Reference, shapes: tuple[tuple[int, int], ...]) -> float:
    """The largest difference from the features of the original code."""
    largest = 0.0
    for shape in shapes:
        found, expected = encoder(pixels(*shape)), reference(pixels(*shape))
        for ours, theirs in zip((found.cls, found.patches), expected, strict=True):
            largest = max(largest, float((ours - theirs).abs().max()))
    return largest


def what_is_missing(path: Path) -> str:
    """What loading without options says: the guessed words, a question, or nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            load_encoder(path)
        except UserError as error:
            return f"asks: {str(error).rpartition('; ')[2]}"
    said = [str(each.message) for each in caught if issubclass(each.category, GuessedWeights)]
    words = (
        [part.partition("=")[0] for part in said[0].split("Assumed: ")[1].split(". If")[0].split(", ")] if said else []
    )
    return ", ".join(word for word in words if word.isidentifier())


def main() -> None:
    """Print a table: what loads, how equal it is, and what a warning names when the file does not say it."""
    print("| file or folder | loads | largest difference of features | without options, warns about |")
    print("|---|---|---|---|")
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path, reference = case.write(Path(folder))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                largest = difference(load_encoder(path, **case.options), reference, case.shapes)
            print(f"| {name} | yes | {largest:.0g} | {what_is_missing(path) or 'nothing: all is stated'} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
