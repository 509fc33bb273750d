"""Tiny models in the place of those of the package."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.concepts import ConceptEncoder, concepts_file
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.weights import packaged

_NETWORK = {"name": "vit_tiny_patch16_224", "image_size": 16, "patch_size": 4, "dim": 16, "depth": 2, "heads": 2}


def ship(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    """Puts tiny models into a folder, in half precision, and lets the package find them there; returns nano."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        nano = Encoder(build_backbone(BackboneConfig(**_NETWORK)), (0.4, 0.4, 0.4), (0.2, 0.2, 0.2)).half()
        concepts = ConceptEncoder(build_backbone(BackboneConfig(**_NETWORK, registers=8)), Localization(16, 0.06))
    folder.mkdir()
    index = {}
    for name, encoder in {"nano": nano, "nano-stellar": concepts.half()}.items():
        file = encoder.save(folder / f"{name}.safetensors", step=7)
        files = [each for each in (file, concepts_file(file)) if each.is_file()]
        hashes = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
        index[name] = {"summary": "a tiny model", "files": hashes}
    (folder / "index.json").write_text(json.dumps(index))
    monkeypatch.setattr(packaged, "folder", lambda: folder)
    return nano.float().eval()
