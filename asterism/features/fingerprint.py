"""Which encoder made some features: a hash that changes with everything that changes a feature."""

from __future__ import annotations

import hashlib

import torch

from asterism.nn.encoder import Encoder


def encoder_fingerprint(encoder: Encoder) -> str:
    """A hash of the weights and of how pixels reach them."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((type(encoder).__name__, encoder.mean, encoder.std, encoder.image_size)).encode())
    for name, tensor in encoder.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
