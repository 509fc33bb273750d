"""Weights with concepts: exports of our runs, and the official STELLAR checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from asterism.errors import UserError
from asterism.nn.backbone import Backbone
from asterism.nn.concepts import ConceptEncoder, concepts_file, load_concepts, load_part
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.reconstruction import CodeReconstruction, ConceptDecoder, PixelReconstruction, Reconstruction
from asterism.nn.tokenizers.base import Tokenizer
from asterism.nn.tokenizers.saved import load_tensors, load_tokenizer, rebuild_tokenizer, vqgan_shape
from asterism.nn.weights.checkpoint_file import CheckpointFile
from asterism.nn.weights.description import Description, WeightsOptions
from asterism.nn.weights.encoder_weights import EncoderWeights, Layout, size_of, usual_heads, weights_of
from asterism.nn.weights.transformers_names import from_transformers
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD

_TEMPERATURE = 0.06  # of the localisation; not in the files
_SIZES = {(768, 12, 16), (1024, 24, 16), (1280, 32, 14)}  # that were published: width, blocks, patch
_CONVENTIONS = frozenset({"heads", "eps", "activation", "pooling", "mean", "std"})


@dataclass(frozen=True)
class ConceptWeights(EncoderWeights):
    """A network whose registers are concepts, with its localisation and decoder."""

    localization: Localization | None = field(kw_only=True)
    reconstruction: Reconstruction | None = field(kw_only=True)

    def encoder(self, backbone: Backbone) -> Encoder:
        encoder = ConceptEncoder(backbone, self.localization, self.reconstruction, self.mean, self.std, self.image_size)
        encoder.step = self.step
        return encoder


def with_concepts_beside(file: CheckpointFile, weights: EncoderWeights) -> EncoderWeights:
    """The weights of a run's encoder, with the concepts that `ConceptEncoder.save` wrote next to it, if any."""
    path = concepts_file(file.path)
    if not path.is_file():
        return weights
    if "norm.weight" not in weights.tensors or "reg_token" not in weights.tensors:
        raise UserError(
            f"{path} holds the concepts of another encoder: {file.path.name} next to it has none; remove one of them"
        )
    localization, reconstruction = load_concepts(path, weights.tensors["norm.weight"].shape[0])
    return ConceptWeights(**vars(weights), localization=localization, reconstruction=reconstruction)


def from_official(file: CheckpointFile, options: WeightsOptions) -> EncoderWeights:
    """A complete official checkpoint; training checkpoints prefix every name."""
    tensors = {name.removeprefix("model."): tensor for name, tensor in file.tensors.items()}
    try:
        return _converted(file, tensors, options)
    except KeyError as error:
        raise UserError(f"{file.path} lacks the tensor {error.args[0]!r} of a STELLAR checkpoint") from None


def _converted(file: CheckpointFile, tensors: Mapping[str, Tensor], options: WeightsOptions) -> ConceptWeights:
    """Latent queries become registers, which are appended after positions were added."""
    vit = from_transformers(tensors, "encoder.")
    vit["reg_token"] = tensors["sparse_tokens"][None]
    vit["cls_token"] = vit["cls_token"] + vit["pos_embed"][:, :1]
    vit["pos_embed"] = vit["pos_embed"][:, 1:]
    dim, _, patch = size = size_of(vit)
    usual = Description(usual_heads(dim), 1e-12, "gelu", "class", IMAGENET_MEAN, IMAGENET_STD)
    certain = _CONVENTIONS if size in _SIZES else frozenset[str]()
    weights = weights_of(file, Layout(vit, Description(), usual, certain, resampling="plain"), options)

    localization = Localization(dim, _TEMPERATURE)
    names = {"dense_proj.": "dense.", "sparse_proj.": "sparse."}
    load_part(localization, {new + kind: tensors[old + kind] for old, new in names.items() for kind in _KINDS}, "")
    grid = weights.architecture.arguments["img_size"] // patch
    return ConceptWeights(
        **vars(weights),
        localization=localization,
        reconstruction=_reconstruction(file, tensors, patch, grid, options),
    )


_KINDS = ("weight", "bias")


def _reconstruction(
    file: CheckpointFile, tensors: Mapping[str, Tensor], patch: int, grid: int, options: WeightsOptions
) -> Reconstruction:
    decoder = _decoder(file, tensors, options)
    head = tensors["reconstruction_head.weight"]
    if head.ndim == 4:
        if options.tokenizer is not None:
            raise no_tokenizer_needed(file.path)
        pixels = PixelReconstruction(decoder, patch)
        load_part(pixels.head, tensors, "reconstruction_head.")
        return pixels
    tokenizer = _tokenizer(file, tensors, options)
    factor = 16 if tokenizer is None else tokenizer.factor
    codes = CodeReconstruction(decoder, len(head), tokenizer, None if factor == patch else grid * factor)
    load_part(codes.head, tensors, "reconstruction_head.")
    return codes


def no_tokenizer_needed(source: str | Path) -> UserError:
    return UserError(
        f"{source} does not need a separate tokenizer: it has no decoder, decodes to pixels, or contains its own "
        "tokenizer; leave out --tokenizer"
    )


def _decoder(file: CheckpointFile, tensors: Mapping[str, Tensor], options: WeightsOptions) -> ConceptDecoder:
    """The official decoder is a complete ViT of transformers, of which only blocks and final norm are used."""
    dim, in_dim = tensors["decoder_proj.weight"].shape
    used = ("blocks.", "norm.")
    blocks = {n: t for n, t in from_transformers(tensors, "decoder.").items() if n.startswith(used)}
    depth = 1 + max(int(name.split(".")[1]) for name in blocks if name.startswith("blocks."))
    heads = options.decoder_heads or (dim // 64 if dim % 64 == 0 else None)
    if heads is None:
        raise UserError(
            f"{file.path} has a decoder of width {dim} and does not state its number of heads; give decoder_heads="
        )
    decoder = ConceptDecoder(in_dim, dim, depth, heads, mlp_ratio=len(blocks["blocks.0.mlp.fc1.weight"]) / dim)
    others = {
        "embed.weight": tensors["decoder_proj.weight"],
        "embed.bias": tensors["decoder_proj.bias"],
        "positions.matrix": tensors["position_embedding.positional_encoding_gaussian_matrix"],
    }
    load_part(decoder, blocks | others, "")
    return decoder


def _tokenizer(file: CheckpointFile, tensors: Mapping[str, Tensor], options: WeightsOptions) -> Tokenizer | None:
    prefix = "tokenizer."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if not own:
        return None if options.tokenizer is None else load_tokenizer(options.tokenizer)
    if options.tokenizer is not None:
        raise no_tokenizer_needed(file.path)
    tokenizer = rebuild_tokenizer({"kind": "maskgit-vqgan", **vqgan_shape(own, file.path)})
    load_tensors(tokenizer, own, file.path)
    return tokenizer
