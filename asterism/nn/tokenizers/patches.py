"""Our own small tokenizer: a vision transformer whose patches are quantised to codes, and a light decoder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.nn.backbone import Backbone
from asterism.nn.positions import Grid
from asterism.nn.reconstruction import ConceptDecoder, PixelReconstruction
from asterism.nn.tokenizers.base import Tokenizer
from asterism.nn.tokenizers.codebook import Codebook
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, Triple, normalise


class PatchCodes(nn.Module):
    """From the patches of a backbone to codes, and from codes to pixels."""

    def __init__(self, dim: int, patch_size: int, vocabulary: int, decoder: ConceptDecoder) -> None:
        super().__init__()
        code_dim = decoder.embed.in_features
        self.squeeze = nn.Linear(dim, code_dim)
        self.codebook = Codebook(vocabulary, code_dim)
        self.reconstruction = PixelReconstruction(decoder, patch_size)

    def latents(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b n c"]:
        """Unit vectors to be quantised."""
        return F.normalize(self.squeeze(patches).float(), dim=-1)


class PatchTokenizer(Tokenizer):
    """One code per patch of the backbone."""

    def __init__(
        self, backbone: Backbone, codes: PatchCodes, mean: Triple = IMAGENET_MEAN, std: Triple = IMAGENET_STD
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.codes = codes
        self.vocabulary = len(codes.codebook.codes)
        self.factor = backbone.patch_size
        self.mean, self.std = mean, std

    def encode(self, images: Float[Tensor, "b 3 H W"]) -> Int[Tensor, "b h w"]:
        self.check_size(images)
        tokens = self.backbone(normalise(images, self.mean, self.std))
        chosen = self.codes.codebook.nearest(self.codes.latents(tokens.patches))
        return chosen.view(len(chosen), *tokens.grid)

    def decode(self, codes: Int[Tensor, "b h w"]) -> Float[Tensor, "b 3 H W"]:
        grid: Grid = (codes.shape[1], codes.shape[2])
        return self.codes.reconstruction(self.codes.codebook.codes[codes.flatten(1)], grid)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "patches",
            "architecture": asdict(self.backbone.architecture),
            "vocabulary": self.vocabulary,
            "decoder": self.codes.reconstruction.decoder.shape,
            "mean": self.mean,
            "std": self.std,
        }
