"""An encoder of what is in an image and where, which can reconstruct the image (STELLAR, equations 1 to 5)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError, reason_of
from asterism.nn.backbone import Backbone
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.reconstruction import (
    CodeReconstruction,
    ConceptDecoder,
    PixelReconstruction,
    Reconstruction,
    ReconstructionConfig,
    grid_mismatch,
)
from asterism.nn.safetensors_file import read_safetensors, write_safetensors
from asterism.nn.tokenizers.saved import load_tokenizer, rebuild_tokenizer
from asterism.nn.weights.metadata import ConceptsFile, check_fits, checked, description_in
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, Triple
from asterism.types import Features


class ConceptEncoder(Encoder):
    """A backbone whose registers are concepts S, with an optional localisation (where they are) and decoder.

    Only reconstruction trains the localisation: a model trained without it has neither, and its features lack `where`.
    `save` writes the backbone as every encoder does, and the rest next to it, to `encoder.concepts.safetensors`.
    """

    def __init__(
        self,
        backbone: Backbone,
        localization: Localization | None,
        reconstruction: Reconstruction | None = None,
        mean: Triple = IMAGENET_MEAN,
        std: Triple = IMAGENET_STD,
        image_size: int | None = None,
    ) -> None:
        super().__init__(backbone, mean, std, image_size)
        self.localization = localization
        self.reconstruction = reconstruction

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        tokens = self.backbone(pixels)
        S, U, where = tokens.registers, tokens.patches, None
        if self.localization is not None:
            where = self.localization(U, S).mT.unflatten(2, tokens.grid)
        return Features(
            cls=U.mean(dim=1) if tokens.cls is None else tokens.cls, patches=U, grid=tokens.grid, sparse=S, where=where
        )

    def vector(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        tokens = self.backbone(pixels, needed="none" if self.backbone.has_cls else "all")
        return tokens.patches.mean(dim=1) if tokens.cls is None else tokens.cls

    @torch.no_grad()
    def reconstruct(self, sparse: Float[Tensor, "b r d"], where: Float[Tensor, "b r h w"]) -> Float[Tensor, "b 3 H W"]:
        """Images in [0, 1] from concepts and their maps, which may have been edited."""
        if self.reconstruction is None:
            raise UserError("this encoder has no decoder; reconstruct with a run that trained one")
        return self.reconstruction(where.flatten(2).mT @ sparse, (where.shape[2], where.shape[3]))

    def save_parts(self, path: Path) -> None:
        reconstruction = None if self.reconstruction is None else self.reconstruction.describe()
        temperature = None if self.localization is None else self.localization.temperature
        description = {"temperature": temperature, "reconstruction": reconstruction}
        parts = {"localization": self.localization, "reconstruction": self.reconstruction}
        tensors = {f"{part}.{n}": t for part, m in parts.items() if m is not None for n, t in m.state_dict().items()}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_safetensors(concepts_file(path), tensors, description)


def concepts_file(encoder_file: Path) -> Path:
    """The file of the parts that do not fit into a plain timm network."""
    return encoder_file.with_name(f"{encoder_file.stem}.concepts.safetensors")


def load_concepts(path: Path, dim: int) -> tuple[Localization | None, Reconstruction | None]:
    """The parts that `ConceptEncoder.save` wrote next to the backbone."""
    tensors, metadata = read_safetensors(path)
    description = checked(ConceptsFile, description_in(metadata, path), path)
    try:
        temperature, decoder = description["temperature"], description["reconstruction"]
        check_fits(lambda: rebuild_reconstruction(decoder), tensors, path)
        localization = None if temperature is None else Localization(dim, temperature)
        reconstruction = rebuild_reconstruction(decoder)
        if localization is not None:
            load_part(localization, tensors, "localization.")
        if reconstruction is not None:
            load_part(reconstruction, tensors, "reconstruction.")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} does not belong to the encoder next to it: {reason_of(error)}") from None
    return localization, reconstruction


def build_reconstruction(config: ReconstructionConfig, dim: int, patch_size: int, image_size: int) -> Reconstruction:
    """A decoder with fresh weights for views of `image_size` pixels, and the tokenizer whose codes it predicts."""
    shape = (config.decoder_dim, config.decoder_depth, config.decoder_heads, config.decoder_mlp_ratio)
    decoder = ConceptDecoder(dim, *shape)
    if config.tokenizer is None:
        return PixelReconstruction(decoder, patch_size)
    tokenizer = load_tokenizer(config.tokenizer)
    patches, seen = image_size // patch_size, config.image_size or image_size
    if seen % tokenizer.factor or seen // tokenizer.factor != patches:
        codes = seen // tokenizer.factor
        raise grid_mismatch((patches, patches), (codes, codes), tokenizer.factor)
    return CodeReconstruction(decoder, tokenizer.vocabulary, tokenizer, config.image_size)


def rebuild_reconstruction(description: Mapping[str, Any] | None) -> Reconstruction | None:
    """The described module; its weights have yet to be loaded."""
    if description is None:
        return None
    decoder = ConceptDecoder(**description["decoder"])
    if description["target"] == "pixels":
        return PixelReconstruction(decoder, description["patch_size"])
    tokenizer = description["tokenizer"]
    return CodeReconstruction(
        decoder,
        description["vocabulary"],
        None if tokenizer is None else rebuild_tokenizer(tokenizer),
        description["image_size"],
    )


def load_part(module: torch.nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Load the tensors under a prefix into a module; none may be missing or left over."""
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    module.load_state_dict(own)  # copies, so that a file in half precision becomes float32
